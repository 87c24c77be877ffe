// Operations along the last axis: one threadgroup for each row.
#include "elements.h"

constant int x_type [[function_constant(0)]];
constant int out_type [[function_constant(1)]];
constant int weight_type [[function_constant(2)]];
constant bool has_bias [[function_constant(3)]];
constant bool add_one [[function_constant(4)]];

struct RowParameters {
  uint columns;
  float epsilon;
};

struct Sum {
  static float combine(float a, float b) { return a + b; }
  static float in_simdgroup(float value) { return simd_sum(value); }
  static float identity() { return 0.0f; }
};

struct Maximum {
  static float combine(float a, float b) { return max(a, b); }
  static float in_simdgroup(float value) { return simd_max(value); }
  static float identity() { return -INFINITY; }
};

// The same value in every thread: lanes, then simdgroups, in a fixed order. `scratch` has 32 elements.
template <typename Reduction>
float reduce(float value, threadgroup float* scratch, uint simdgroup, uint simdgroups, uint lane) {
  value = Reduction::in_simdgroup(value);
  threadgroup_barrier(mem_flags::mem_threadgroup);  // everyone is done with what is in scratch
  if (lane == 0) scratch[simdgroup] = value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return Reduction::in_simdgroup(lane < simdgroups ? scratch[lane] : Reduction::identity());
}

#define ROW_ARGUMENTS                                                                                                 \
  uint row [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],                              \
      uint threads [[threads_per_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],                    \
      uint simdgroups [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]

kernel void softmax(device const uchar* x [[buffer(0)]], device uchar* out [[buffer(1)]],
                    constant RowParameters& size [[buffer(2)]], ROW_ARGUMENTS) {
  threadgroup float scratch[32];
  ulong start = ulong(row) * size.columns;
  float largest = -INFINITY;
  for (uint i = index; i < size.columns; i += threads) largest = max(largest, load_element(x, start + i, x_type));
  largest = reduce<Maximum>(largest, scratch, simdgroup, simdgroups, lane);
  float sum = 0.0f;
  for (uint i = index; i < size.columns; i += threads)
    sum += precise::exp(load_element(x, start + i, x_type) - largest);
  sum = reduce<Sum>(sum, scratch, simdgroup, simdgroups, lane);
  for (uint i = index; i < size.columns; i += threads)
    store_element(out, start + i, out_type, precise::exp(load_element(x, start + i, x_type) - largest) / sum);
}

kernel void rms_norm(device const uchar* x [[buffer(0)]], device uchar* out [[buffer(1)]],
                     constant RowParameters& size [[buffer(2)]], device const uchar* weight [[buffer(3)]],
                     ROW_ARGUMENTS) {
  threadgroup float scratch[32];
  ulong start = ulong(row) * size.columns;
  float sum = 0.0f;
  for (uint i = index; i < size.columns; i += threads) {
    float value = load_element(x, start + i, x_type);
    sum = fma(value, value, sum);
  }
  sum = reduce<Sum>(sum, scratch, simdgroup, simdgroups, lane);
  float factor = 1.0f / precise::sqrt(sum / float(size.columns) + size.epsilon);
  for (uint i = index; i < size.columns; i += threads) {
    float scale = load_element(weight, i, weight_type) + (add_one ? 1.0f : 0.0f);
    store_element(out, start + i, out_type, load_element(x, start + i, x_type) * factor * scale);
  }
}

kernel void layer_norm(device const uchar* x [[buffer(0)]], device uchar* out [[buffer(1)]],
                       constant RowParameters& size [[buffer(2)]], device const uchar* weight [[buffer(3)]],
                       device const uchar* bias [[buffer(4), function_constant(has_bias)]], ROW_ARGUMENTS) {
  threadgroup float scratch[32];
  ulong start = ulong(row) * size.columns;
  float sum = 0.0f;
  for (uint i = index; i < size.columns; i += threads) sum += load_element(x, start + i, x_type);
  float mean = reduce<Sum>(sum, scratch, simdgroup, simdgroups, lane) / float(size.columns);
  float squares = 0.0f;
  for (uint i = index; i < size.columns; i += threads) {
    float distance = load_element(x, start + i, x_type) - mean;
    squares = fma(distance, distance, squares);
  }
  squares = reduce<Sum>(squares, scratch, simdgroup, simdgroups, lane);
  float factor = 1.0f / precise::sqrt(squares / float(size.columns) + size.epsilon);
  for (uint i = index; i < size.columns; i += threads) {
    float value = (load_element(x, start + i, x_type) - mean) * factor * load_element(weight, i, weight_type);
    if (has_bias) value += load_element(bias, i, weight_type);
    store_element(out, start + i, out_type, value);
  }
}
