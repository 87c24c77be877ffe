// What both kernels of attention share: parameters, and which keys a query sees. HEAD_SIZE and VALUE_SIZE are macros
// because arrays of registers are as long: their bounds have to be known when loops are unrolled.
#pragma once
#include "elements.h"

constant int q_type [[function_constant(0)]];
constant int k_type [[function_constant(1)]];
constant int v_type [[function_constant(2)]];
constant int out_type [[function_constant(3)]];
constant bool causal [[function_constant(6)]];
constant bool has_window [[function_constant(7)]];
constant bool has_softcap [[function_constant(8)]];

constant constexpr uint head_size = HEAD_SIZE;
constant constexpr uint value_size = VALUE_SIZE;

struct AttentionParameters {
  uint queries, keys;
  uint group;  // heads of queries that share a head of keys
  uint offset;  // position of the first query among the keys
  uint window;
  float scale, softcap;
};

inline uint first_key(uint query, constant AttentionParameters& size) {
  uint position = size.offset + query;
  return has_window && position >= size.window ? min(position - size.window + 1, size.keys) : 0;
}

// One past the last key.
inline uint last_key(uint query, constant AttentionParameters& size) {
  uint position = size.offset + query;
  if (causal) return min(position + 1, size.keys);
  return has_window ? min(position + size.window, size.keys) : size.keys;
}

inline float score(float product, constant AttentionParameters& size) {
  float scaled = product * size.scale;
  return has_softcap ? size.softcap * precise::tanh(scaled / size.softcap) : scaled;
}

// exp(value - largest), where a largest of -infinity means that nothing was seen.
inline float weight_of(float value, float largest) {
  return largest == -INFINITY ? 0.0f : precise::exp(value - largest);
}
