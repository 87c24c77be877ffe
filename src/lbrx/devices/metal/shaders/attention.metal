// softmax(scale q k^T) v for many queries. A simdgroup has eight of them; the threadgroup walks over blocks of keys and
// values in threadgroup memory, with a softmax that runs along. TILE is the type of elements in tiles, float or half.
#include "attention_parts.h"

constant uint block_keys [[function_constant(9)]];
constant bool rows_are_aligned [[function_constant(10)]];  // those of queries, keys and values
constant constexpr uint FRAGMENTS = (VALUE_SIZE + 7) / 8;  // of 8 values each
constant constexpr uint PADDING = 16 / sizeof(TILE);
constant constexpr uint SCORE_PADDING = 4;

inline uint whole_eights(uint size) { return (size + 7) / 8 * 8; }
inline uint tile_stride() { return whole_eights(max(head_size, value_size)) + PADDING; }

// Rows `first` to `first` + `count` - 1 of a matrix [end, columns], with zeros beyond its edges.
inline void load_rows(threadgroup TILE* tile, device const uchar* source, int type, ulong start, uint first, uint count,
                      uint end, uint columns, uint index, uint threads) {
  uint width = whole_eights(columns);
  for (uint i = 4 * index; i < count * width; i += 4 * threads) {
    uint row = i / width, column = i % width;
    ulong row_start = start + ulong(first + row) * columns;
    float4 quad = 0.0f;
    if (first + row < end) quad = load_row_quad(source, row_start, column, columns, type, rows_are_aligned);
    threadgroup TILE* target = tile + row * tile_stride() + column;
    for (uint j = 0; j < 4; j++) target[j] = TILE(quad[j]);
  }
}

// Over the four lanes that share a row.
inline float row_max(float value) {
  value = max(value, simd_shuffle_xor(value, 1));
  return max(value, simd_shuffle_xor(value, 2));
}

inline float row_sum(float value) {
  value += simd_shuffle_xor(value, 1);
  return value + simd_shuffle_xor(value, 2);
}

kernel void attention(device const uchar* q [[buffer(0)]], device const uchar* k [[buffer(1)]],
                      device const uchar* v [[buffer(2)]], device uchar* out [[buffer(3)]],
                      constant AttentionParameters& size [[buffer(4)]],
                      threadgroup TILE* tiles [[threadgroup(0)]],  // queries, then a block of keys or values
                      threadgroup float* all_scores [[threadgroup(1)]],
                      threadgroup TILE* all_weights [[threadgroup(2)]],
                      threadgroup float* all_factors [[threadgroup(3)]],  // diagonal matrices
                      uint2 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                      uint2 group_threads [[threads_per_threadgroup]],
                      uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  uint threads = group_threads.x, group_queries = threads / 4;
  uint first_query = group.x * group_queries, head = group.y;
  uint last_query = min(first_query + group_queries, size.queries) - 1;
  ulong keys_start = ulong(head / size.group) * size.keys;
  threadgroup TILE* own_queries = tiles + 8 * simdgroup * tile_stride();
  threadgroup TILE* block = tiles + group_queries * tile_stride();
  uint score_stride = block_keys + SCORE_PADDING, weight_stride = block_keys + PADDING;
  threadgroup float* scores = all_scores + 8 * simdgroup * score_stride;
  threadgroup TILE* weights = all_weights + 8 * simdgroup * weight_stride;
  threadgroup float* factors = all_factors + 64 * simdgroup;

  load_rows(tiles, q, q_type, ulong(head) * size.queries * head_size, first_query, group_queries, size.queries,
            head_size, index, threads);
  factors[lane] = 0.0f;
  factors[lane + 32] = 0.0f;
  simdgroup_matrix<float, 8, 8> sums[FRAGMENTS];
  UNROLL for (uint i = 0; i < FRAGMENTS; i++) sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

  uint row = lane / 4, query = first_query + 8 * simdgroup + row;
  uint low = first_key(query, size), high = last_key(query, size);
  float largest = -INFINITY, total = 0.0f;
  uint end = last_key(last_query, size);
  for (uint start = first_key(first_query, size); start < end; start += block_keys) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    load_rows(block, k, k_type, keys_start * head_size, start, block_keys, size.keys, head_size, index, threads);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint j = 0; j < block_keys; j += 8) {
      simdgroup_matrix<float, 8, 8> products = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      for (uint d = 0; d < head_size; d += 8) {
        simdgroup_matrix<TILE, 8, 8> some_queries, some_keys;
        simdgroup_load(some_queries, own_queries + d, tile_stride());
        simdgroup_load(some_keys, block + j * tile_stride() + d, tile_stride(), ulong2(0, 0), true);
        simdgroup_multiply_accumulate(products, some_queries, some_keys, products);
      }
      simdgroup_store(products, scores + j, score_stride);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    load_rows(block, v, v_type, keys_start * value_size, start, block_keys, size.keys, value_size, index, threads);

    float new_largest = largest;
    for (uint j = lane % 4; j < block_keys; j += 4) {
      uint key = start + j;
      bool is_seen = key >= low && key < high;
      float value = is_seen ? score(scores[row * score_stride + j], size) : -INFINITY;
      scores[row * score_stride + j] = value;
      new_largest = max(new_largest, value);
    }
    new_largest = row_max(new_largest);
    float factor = weight_of(largest, new_largest), added = 0.0f;
    for (uint j = lane % 4; j < block_keys; j += 4) {
      float weight = weight_of(scores[row * score_stride + j], new_largest);
      weights[row * weight_stride + j] = TILE(weight);
      added += weight;
    }
    total = total * factor + row_sum(added);
    largest = new_largest;
    if (lane % 4 == 0) factors[row * 9] = factor;
    threadgroup_barrier(mem_flags::mem_threadgroup);

    simdgroup_matrix<float, 8, 8> scaling;
    simdgroup_load(scaling, factors, 8);
    UNROLL for (uint i = 0; i < FRAGMENTS; i++) {
      simdgroup_multiply(sums[i], scaling, sums[i]);
      for (uint j = 0; j < block_keys; j += 8) {
        simdgroup_matrix<TILE, 8, 8> some_weights, some_values;
        simdgroup_load(some_weights, weights + j, weight_stride);
        simdgroup_load(some_values, block + j * tile_stride() + 8 * i, tile_stride());
        simdgroup_multiply_accumulate(sums[i], some_weights, some_values, sums[i]);
      }
    }
  }

  float inverse = total > 0.0f ? 1.0f / total : 0.0f;
  UNROLL for (uint i = 0; i < FRAGMENTS; i++) {
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_store(sums[i], scores, score_stride);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint column = lane % 4; column < 8; column += 4) {
      ulong place = (ulong(head) * size.queries + query) * value_size + 8 * i + column;
      if (query < size.queries && 8 * i + column < value_size)
        store_element(out, place, out_type, scores[row * score_stride + column] * inverse);
    }
  }
}
