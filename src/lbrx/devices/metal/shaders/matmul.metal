// a [n, k] times b [k, m], either of them transposed, or times the transpose of a weight [m, k] in any coding.
// A threadgroup of four simdgroups makes one tile of the result. Tiles of the operands keep the orientation that they
// have in memory; what is transposed is turned when fragments of 8 x 8 are loaded from threadgroup memory.
// TILE, the type of elements in tiles, is float, half or bfloat.
#include "epilogue.h"
#include "weights.h"

constant int a_type [[function_constant(20)]];
constant bool transpose_a [[function_constant(21)]];
constant bool transpose_b [[function_constant(22)]];
constant bool a_is_aligned [[function_constant(23)]];
constant bool b_is_aligned [[function_constant(24)]];

constant constexpr uint THREADS = 128;
constant constexpr uint DEPTH = 16;  // of a tile, along k

struct MatmulParameters {
  uint rows, columns, inner;
};

constexpr uint larger(uint a, uint b) { return a > b ? a : b; }

template <typename T> constexpr uint padding() { return 16 / sizeof(T); }  // against bank conflicts

// Copy a tile [OUTER, INNER] of a matrix [outer_end, inner_end], with zeros beyond its edges.
template <typename T, uint OUTER, uint INNER>
void load_plain(threadgroup T* tile, device const uchar* source, int type, bool is_aligned, ulong matrix, uint outer,
                uint outer_end, uint inner, uint inner_end, uint thread_index) {
  for (uint i = 4 * thread_index; i < OUTER * INNER; i += 4 * THREADS) {
    uint row = i / INNER, column = i % INNER;
    ulong start = matrix + ulong(outer + row) * inner_end;
    float4 quad = 0.0f;
    if (outer + row < outer_end) quad = load_row_quad(source, start, inner + column, inner_end, type, is_aligned);
    threadgroup T* target = tile + row * (INNER + padding<T>()) + column;
    for (uint j = 0; j < 4; j++) target[j] = T(quad[j]);
  }
}

// The same from rows of blocks.
template <typename T, uint OUTER>
void load_coded(threadgroup T* tile, device const uchar* weight, device const uchar* scales,
                device const uchar* biases, uint outer, uint outer_end, uint inner, uint inner_end,
                uint thread_index) {
  for (uint i = 8 * thread_index; i < OUTER * DEPTH; i += 8 * THREADS) {
    uint row = i / DEPTH, column = i % DEPTH;
    float4 low = 0.0f, high = 0.0f;
    if (outer + row < outer_end && inner + column < inner_end)
      decode(load_eight(weight, scales, biases, outer + row, inner_end, inner + column), low, high);
    threadgroup T* target = tile + row * (DEPTH + padding<T>()) + column;
    for (uint j = 0; j < 4; j++) {
      target[j] = T(low[j]);
      target[j + 4] = T(high[j]);
    }
  }
}

// Eight by eight elements at (row, column) of a tile that is stored transposed or not.
template <typename T>
void load_fragment(thread simdgroup_matrix<T, 8, 8>& eights, threadgroup const T* tile, uint row, uint column,
                   bool transposed, uint height, uint width) {
  uint stride = (transposed ? height : width) + padding<T>();
  if (transposed) simdgroup_load(eights, tile + column * stride + row, stride, ulong2(0, 0), true);
  else simdgroup_load(eights, tile + row * stride + column, stride);
}

template <typename T, uint HEIGHT, uint WIDTH>
kernel void matmul(device const uchar* a [[buffer(0)]], device const uchar* b [[buffer(1)]],
                   device const uchar* scales [[buffer(2), function_constant(weight_has_scales)]],
                   device const uchar* biases [[buffer(3), function_constant(weight_has_scales)]],
                   device const uchar* bias [[buffer(4), function_constant(has_bias)]],
                   device const uchar* residual [[buffer(5), function_constant(has_residual)]],
                   device uchar* out [[buffer(6)]], constant MatmulParameters& size [[buffer(7)]],
                   constant uint2* matrices [[buffer(8)]],  // of a and b, for each matrix of the result
                   uint3 group [[threadgroup_position_in_grid]],
                   uint thread_index [[thread_index_in_threadgroup]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  constexpr uint A_BYTES = larger(HEIGHT * (DEPTH + padding<T>()), DEPTH * (HEIGHT + padding<T>())) * sizeof(T);
  constexpr uint B_BYTES = larger(WIDTH * (DEPTH + padding<T>()), DEPTH * (WIDTH + padding<T>())) * sizeof(T);
  constexpr uint OUT_BYTES = HEIGHT * (WIDTH + 4) * sizeof(float);
  threadgroup float4 memory[larger(A_BYTES + B_BYTES, OUT_BYTES) / sizeof(float4)];
  threadgroup T* a_tile = (threadgroup T*)memory;
  threadgroup T* b_tile = (threadgroup T*)(memory + A_BYTES / sizeof(float4));

  constexpr uint DOWN = HEIGHT / 16, ACROSS = WIDTH / 16;  // fragments of a simdgroup, which makes a quarter
  uint top = group.y * HEIGHT, left = group.x * WIDTH;
  uint own_row = simdgroup / 2 * (HEIGHT / 2), own_column = simdgroup % 2 * (WIDTH / 2);
  ulong a_matrix = ulong(matrices[group.z].x) * size.rows * size.inner;
  ulong b_matrix = ulong(matrices[group.z].y) * size.columns * size.inner;

  simdgroup_matrix<float, 8, 8> sums[DOWN][ACROSS];
  UNROLL for (uint i = 0; i < DOWN; i++)
    UNROLL for (uint j = 0; j < ACROSS; j++) sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

  for (uint k = 0; k < size.inner; k += DEPTH) {
    if (transpose_a)
      load_plain<T, DEPTH, HEIGHT>(a_tile, a, a_type, a_is_aligned, a_matrix, k, size.inner, top, size.rows,
                                   thread_index);
    else
      load_plain<T, HEIGHT, DEPTH>(a_tile, a, a_type, a_is_aligned, a_matrix, top, size.rows, k, size.inner,
                                   thread_index);
    if (!is_plain())
      load_coded<T, WIDTH>(b_tile, b, scales, biases, left, size.columns, k, size.inner, thread_index);
    else if (transpose_b)
      load_plain<T, WIDTH, DEPTH>(b_tile, b, weight_coding, b_is_aligned, b_matrix, left, size.columns, k, size.inner,
                                  thread_index);
    else
      load_plain<T, DEPTH, WIDTH>(b_tile, b, weight_coding, b_is_aligned, b_matrix, k, size.inner, left, size.columns,
                                  thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint step = 0; step < DEPTH; step += 8) {
      simdgroup_matrix<T, 8, 8> a_fragments[DOWN], b_fragments[ACROSS];
      UNROLL for (uint i = 0; i < DOWN; i++)
        load_fragment<T>(a_fragments[i], a_tile, own_row + 8 * i, step, transpose_a, HEIGHT, DEPTH);
      UNROLL for (uint j = 0; j < ACROSS; j++)
        load_fragment<T>(b_fragments[j], b_tile, step, own_column + 8 * j, transpose_b, DEPTH, WIDTH);
      UNROLL for (uint i = 0; i < DOWN; i++)
        UNROLL for (uint j = 0; j < ACROSS; j++)
          simdgroup_multiply_accumulate(sums[i][j], a_fragments[i], b_fragments[j], sums[i][j]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  threadgroup float* out_tile = (threadgroup float*)memory;
  UNROLL for (uint i = 0; i < DOWN; i++)
    UNROLL for (uint j = 0; j < ACROSS; j++)
      simdgroup_store(sums[i][j], out_tile + (own_row + 8 * i) * (WIDTH + 4) + own_column + 8 * j, WIDTH + 4);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = thread_index; i < HEIGHT * WIDTH; i += THREADS) {
    uint row = i / WIDTH, column = i % WIDTH;
    if (top + row < size.rows && left + column < size.columns) {
      ulong place = (ulong(group.z) * size.rows + top + row) * size.columns + left + column;
      finish(out_tile[row * (WIDTH + 4) + column], out, place, left + column, bias, residual);
    }
  }
}

#define INSTANTIATE(name, EDGE) \
  template [[host_name(name)]] [[kernel]] decltype(matmul<TILE, EDGE, EDGE>) matmul<TILE, EDGE, EDGE>;
INSTANTIATE("matmul_32x32", 32)
INSTANTIATE("matmul_64x64", 64)
