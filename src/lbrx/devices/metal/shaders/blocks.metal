// Rows of weights looked up, blocks to numbers, and numbers to blocks of Q8_0 and Q4_0.
#include "weights.h"

constant int x_type [[function_constant(20)]];
constant int out_type [[function_constant(21)]];

struct WeightParameters {
  uint rows, columns;
};

inline void store_row_part(Eight eight, device uchar* out, ulong start, uint at, uint columns) {
  float4 low, high;
  decode(eight, low, high);
  for (uint i = 0; i < 8 && at + i < columns; i++)
    store_element(out, start + at + i, out_type, i < 4 ? low[i] : high[i - 4]);
}

// Thread (i, row): eight values.
kernel void dequantize(device const uchar* weight [[buffer(0)]], device uchar* out [[buffer(1)]],
                       constant WeightParameters& size [[buffer(2)]],
                       device const uchar* scales [[buffer(3), function_constant(weight_has_scales)]],
                       device const uchar* biases [[buffer(4), function_constant(weight_has_scales)]],
                       uint2 place [[thread_position_in_grid]]) {
  Eight eight = load_eight(weight, scales, biases, place.y, size.columns, 8 * place.x);
  store_row_part(eight, out, ulong(place.y) * size.columns, 8 * place.x, size.columns);
}

// The rows with these numbers; a number that is out of range gives NaN.
kernel void embedding(device const uchar* weight [[buffer(0)]], device uchar* out [[buffer(1)]],
                      constant WeightParameters& size [[buffer(2)]],
                      device const uchar* scales [[buffer(3), function_constant(weight_has_scales)]],
                      device const uchar* biases [[buffer(4), function_constant(weight_has_scales)]],
                      device const int* ids [[buffer(5)]], uint2 place [[thread_position_in_grid]]) {
  int id = ids[place.y];
  ulong start = ulong(place.y) * size.columns;
  if (id < 0 || uint(id) >= size.rows) {
    for (uint i = 8 * place.x; i < min(8 * place.x + 8, size.columns); i++)
      store_element(out, start + i, out_type, NAN);
    return;
  }
  Eight eight = load_eight(weight, scales, biases, uint(id), size.columns, 8 * place.x);
  store_row_part(eight, out, start, 8 * place.x, size.columns);
}

inline float inverse(float scale) { return scale == 0.0f ? 0.0f : 1.0f / scale; }

// NaN becomes `low`.
inline float within(float value, float low, float high) {
  float raised = value > low ? value : low;
  return raised < high ? raised : high;
}

// The largest magnitude of a block of 32, halves against halves as on the CPU: what NaN does depends on the order.
inline float largest_magnitude(device const uchar* x, ulong first) {
  float4 part[8];
  UNROLL for (uint i = 0; i < 32; i++) part[i / 4][i % 4] = abs(load_element(x, first + i, x_type));
  UNROLL for (uint count = 4; count > 0; count /= 2) {
    UNROLL for (uint i = 0; i < count; i++) part[i] = select(part[i + count], part[i], part[i] > part[i + count]);
  }
  float2 two = select(part[0].zw, part[0].xy, part[0].xy > part[0].zw);
  return two.x > two.y ? two.x : two.y;
}

// A thread codes one block of 32.
kernel void quantize_q8_0(device const uchar* x [[buffer(0)]], device uchar* out [[buffer(1)]],
                          uint block [[thread_position_in_grid]]) {
  ulong first = 32ul * block;
  float scale = largest_magnitude(x, first) / 127.0f;
  float factor = inverse(scale);
  device uchar* target = out + 34ul * block;
  *(device half*)target = half(scale);
  for (uint i = 0; i < 32; i++) {
    float code = within(round(load_element(x, first + i, x_type) * factor), -128.0f, 127.0f);
    target[2 + i] = as_type<uchar>(char(code));
  }
}

kernel void quantize_q4_0(device const uchar* x [[buffer(0)]], device uchar* out [[buffer(1)]],
                          uint block [[thread_position_in_grid]]) {
  ulong first = 32ul * block;
  float largest = largest_magnitude(x, first);
  float extreme = 0.0f;  // the element with the largest magnitude, the first of several
  for (uint i = 32; i > 0 && largest > 0.0f; i--) {
    float value = load_element(x, first + i - 1, x_type);
    if (abs(value) >= largest) extreme = value;
  }
  float scale = extreme / -8.0f;
  float factor = inverse(scale);
  device uchar* target = out + 18ul * block;
  *(device half*)target = half(scale);
  for (uint i = 0; i < 16; i++) {
    uint low = uint(within(load_element(x, first + i, x_type) * factor + 8.5f, 0.0f, 15.0f));
    uint high = uint(within(load_element(x, first + 16 + i, x_type) * factor + 8.5f, 0.0f, 15.0f));
    target[2 + i] = uchar(low | (high << 4));
  }
}
