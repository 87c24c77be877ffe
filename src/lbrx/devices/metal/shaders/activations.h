// silu and gelu, accurate relative to the result on both sides of zero.
#pragma once
#include "elements.h"

constant constexpr int NO_ACTIVATION = 0;
constant constexpr int SILU = 1;
constant constexpr int GELU = 2;
constant constexpr int GELU_TANH = 3;

inline float silu(float x) { return x / (1.0f + precise::exp(-x)); }

// The usual approximation, x / 2 (1 + tanh u), written as x / (1 + exp(-2 u)): nothing cancels.
inline float gelu_tanh(float x) {
  float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return x / (1.0f + precise::exp(-2.0f * u));
}

// erfc(z) = t exp(-z z + p(t)) with t = 1 / (1 + z / 2) for z >= 0; p is a least-squares fit.
// z z is x x / 2, of which the rounding error is carried along: exp would magnify it.
inline float gelu_erf(float x) {
  float t = 1.0f / (1.0f + 0.35355339059327373f * abs(x));
  float p = 0.177811729f;
  p = p * t - 0.855535457f;
  p = p * t + 1.5563429f;
  p = p * t - 1.21088461f;
  p = p * t + 0.329358253f;
  p = p * t - 0.206837508f;
  p = p * t + 0.101772755f;
  p = p * t + 0.373417683f;
  p = p * t + 1.00006753f;
  p = p * t - 1.26551319f;
  float square = x * x;
  float rest = fma(x, x, -square);
  float tail = 0.5f * t * precise::exp(-0.5f * square) * precise::exp(p - 0.5f * rest);
  if (square > 1e30f) tail = 0.0f;
  return x < 0.0f ? x * tail : x - x * tail;
}

inline float activate(float x, int activation) {
  if (activation == SILU) return silu(x);
  if (activation == GELU) return gelu_erf(x);
  if (activation == GELU_TANH) return gelu_tanh(x);
  return x;
}
