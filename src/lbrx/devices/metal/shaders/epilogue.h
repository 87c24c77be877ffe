// What happens to a sum of products before it is stored: bias, activation, residual.
#pragma once
#include "activations.h"

constant int out_type [[function_constant(10)]];
constant bool has_bias [[function_constant(11)]];
constant int bias_type [[function_constant(12)]];
constant int activation [[function_constant(13)]];
constant bool has_residual [[function_constant(14)]];
constant int residual_type [[function_constant(15)]];

inline void finish(float sum, device uchar* out, ulong place, uint column, device const uchar* bias,
                   device const uchar* residual) {
  float value = sum;
  if (has_bias) value += load_element(bias, column, bias_type);
  value = activate(value, activation);
  if (has_residual) value += load_element(residual, place, residual_type);
  store_element(out, place, out_type, value);
}
