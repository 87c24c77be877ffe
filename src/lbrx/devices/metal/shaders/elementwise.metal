// Activations, gated activations, soft caps and rope. A thread has four elements, or one pair of rope.
#include "activations.h"

constant int x_type [[function_constant(0)]];
constant int out_type [[function_constant(1)]];
constant int activation [[function_constant(2)]];
constant bool is_gated [[function_constant(3)]];
constant int other_type [[function_constant(4)]];
constant bool has_softcap [[function_constant(5)]];
constant bool is_interleaved [[function_constant(6)]];

struct ElementwiseParameters {
  ulong count;
  float softcap;
};

kernel void activation_of(device const uchar* x [[buffer(0)]], device uchar* out [[buffer(1)]],
                          constant ElementwiseParameters& size [[buffer(2)]],
                          device const uchar* other [[buffer(3), function_constant(is_gated)]],
                          uint index [[thread_position_in_grid]]) {
  ulong first = 4ul * index;
  for (ulong i = first; i < min(first + 4, size.count); i++) {
    float value = load_element(x, i, x_type);
    if (has_softcap) value = size.softcap * precise::tanh(value / size.softcap);
    value = activate(value, activation);
    if (is_gated) value *= load_element(other, i, other_type);
    store_element(out, i, out_type, value);
  }
}

struct RopeParameters {
  uint columns, pairs, positions;
};

// x [..., positions, columns]; cosines and sines [positions, pairs]. Thread (i, row): pair i of the row, and beyond the
// pairs one element that stays as it is.
kernel void rope(device const uchar* x [[buffer(0)]], device uchar* out [[buffer(1)]],
                 constant RopeParameters& size [[buffer(2)]], device const float* cosines [[buffer(3)]],
                 device const float* sines [[buffer(4)]], uint2 place [[thread_position_in_grid]]) {
  uint i = place.x;
  ulong start = ulong(place.y) * size.columns;
  if (i >= size.pairs) {
    ulong element = start + size.pairs + i;
    store_element(out, element, out_type, load_element(x, element, x_type));
    return;
  }
  uint near = is_interleaved ? 2 * i : i, far = is_interleaved ? 2 * i + 1 : i + size.pairs;
  ulong angle = ulong(place.y % size.positions) * size.pairs + i;
  float a = load_element(x, start + near, x_type), b = load_element(x, start + far, x_type);
  float cosine = cosines[angle], sine = sines[angle];
  store_element(out, start + near, out_type, a * cosine - b * sine);
  store_element(out, start + far, out_type, b * cosine + a * sine);
}
