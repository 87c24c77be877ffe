// Up to four vectors x [v, k] times a weight [m, k] in any coding: [v, m]. A simdgroup makes four elements of every
// result; its lanes read 256 values of each row at a time. With `split`, all simdgroups of a threadgroup share four
// rows, each takes every n-th run of 256: for few long rows. VECTORS is a macro because it is the length of arrays.
#include "epilogue.h"
#include "weights.h"

constant int x_type [[function_constant(20)]];
constant bool split [[function_constant(22)]];
constant bool x_is_aligned [[function_constant(23)]];

constant constexpr uint ROWS = 4;
constant constexpr uint MOST_SIMDGROUPS = 8;
constant constexpr uint RUN = 256;  // 32 lanes of eight values

struct MatvecParameters {
  uint rows, columns;
};

inline float total_of(float4 four) { return (four.x + four.y) + (four.z + four.w); }

kernel void matvec(device const uchar* x [[buffer(0)]], device const uchar* weight [[buffer(1)]],
                   device const uchar* scales [[buffer(2), function_constant(weight_has_scales)]],
                   device const uchar* biases [[buffer(3), function_constant(weight_has_scales)]],
                   device const uchar* bias [[buffer(4), function_constant(has_bias)]],
                   device const uchar* residual [[buffer(5), function_constant(has_residual)]],
                   device uchar* out [[buffer(6)]], constant MatvecParameters& size [[buffer(7)]],
                   uint group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                   uint simdgroups [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float partial[MOST_SIMDGROUPS][ROWS * VECTORS];
  uint first = (split ? group : group * simdgroups + simdgroup) * ROWS;
  float sums[ROWS][VECTORS];
  UNROLL for (uint r = 0; r < ROWS; r++)
    UNROLL for (uint v = 0; v < VECTORS; v++) sums[r][v] = 0.0f;

  uint stride = split ? simdgroups * RUN : RUN;
  for (uint at = (split ? simdgroup * RUN : 0) + 8 * lane; at < size.columns; at += stride) {
    float4 low[VECTORS], high[VECTORS];
    float total[VECTORS];
    UNROLL for (uint v = 0; v < VECTORS; v++) {
      ulong start = ulong(v) * size.columns;
      low[v] = load_row_quad(x, start, at, size.columns, x_type, x_is_aligned);
      high[v] = load_row_quad(x, start, at + 4, size.columns, x_type, x_is_aligned);
      total[v] = has_offset() ? total_of(low[v] + high[v]) : 0.0f;
    }
    UNROLL for (uint r = 0; r < ROWS; r++) {
      uint row = min(first + r, size.rows - 1);  // beyond the last row: read what is there, store nothing
      Eight eight = load_eight(weight, scales, biases, row, size.columns, at);
      UNROLL for (uint v = 0; v < VECTORS; v++)
        sums[r][v] = fma(eight.scale, total_of(fma(eight.low, low[v], eight.high * high[v])),
                         fma(eight.offset, total[v], sums[r][v]));
    }
  }

  UNROLL for (uint r = 0; r < ROWS; r++) {
    UNROLL for (uint v = 0; v < VECTORS; v++) {
      float sum = simd_sum(sums[r][v]);
      if (split) {
        if (lane == 0) partial[simdgroup][r * VECTORS + v] = sum;
      } else if (lane == 0 && first + r < size.rows) {
        finish(sum, out, ulong(v) * size.rows + first + r, first + r, bias, residual);
      }
    }
  }
  if (!split) return;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint r = lane / VECTORS, v = lane % VECTORS;
  if (simdgroup != 0 || r >= ROWS || v >= VECTORS || first + r >= size.rows) return;
  float sum = 0.0f;
  for (uint i = 0; i < simdgroups; i++) sum += partial[i][lane];
  finish(sum, out, ulong(v) * size.rows + first + r, first + r, bias, residual);
}
