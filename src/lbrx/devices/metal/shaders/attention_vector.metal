// softmax(scale q k^T) v for few queries: a threadgroup for each query of each head. Simdgroups take turns at the keys,
// lanes share the elements of a head; what the simdgroups found is put together at the end.
#include "attention_parts.h"

constant constexpr uint MOST_PARTS = 8;  // of 32 elements each: 256
constant constexpr uint SIMDGROUPS = 8;

kernel void attention_vector(device const uchar* q [[buffer(0)]], device const uchar* k [[buffer(1)]],
                             device const uchar* v [[buffer(2)]], device uchar* out [[buffer(3)]],
                             constant AttentionParameters& size [[buffer(4)]],
                             uint2 group [[threadgroup_position_in_grid]],
                             uint index [[thread_index_in_threadgroup]],
                             uint simdgroup [[simdgroup_index_in_threadgroup]],
                             uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float partial[SIMDGROUPS][32 * MOST_PARTS];
  threadgroup float maxima[SIMDGROUPS], totals[SIMDGROUPS];
  uint query = group.x, head = group.y;
  ulong query_row = ulong(head) * size.queries + query;
  ulong keys_start = ulong(head / size.group) * size.keys;
  float own_query[MOST_PARTS], sums[MOST_PARTS];
  for (uint i = 0; i < MOST_PARTS; i++) {
    uint element = lane + 32 * i;
    own_query[i] = element < head_size ? load_element(q, query_row * head_size + element, q_type) : 0.0f;
    sums[i] = 0.0f;
  }
  float largest = -INFINITY, total = 0.0f;
  uint end = last_key(query, size);
  for (uint key = first_key(query, size) + simdgroup; key < end; key += SIMDGROUPS) {
    float product = 0.0f;
    for (uint i = 0; 32 * i < head_size; i++) {
      uint element = lane + 32 * i;
      if (element < head_size)
        product = fma(own_query[i], load_element(k, (keys_start + key) * head_size + element, k_type), product);
    }
    float value = score(simd_sum(product), size);
    float new_largest = max(largest, value);
    float factor = weight_of(largest, new_largest), weight = weight_of(value, new_largest);
    total = fma(total, factor, weight);
    for (uint i = 0; 32 * i < value_size; i++) {
      uint element = lane + 32 * i;
      if (element < value_size)
        sums[i] = fma(weight, load_element(v, (keys_start + key) * value_size + element, v_type), sums[i] * factor);
    }
    largest = new_largest;
  }

  for (uint i = 0; 32 * i < value_size; i++) partial[simdgroup][lane + 32 * i] = sums[i];
  if (lane == 0) {
    maxima[simdgroup] = largest;
    totals[simdgroup] = total;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float highest = -INFINITY, everything = 0.0f;
  for (uint i = 0; i < SIMDGROUPS; i++) highest = max(highest, maxima[i]);
  for (uint i = 0; i < SIMDGROUPS; i++) everything += totals[i] * weight_of(maxima[i], highest);
  for (uint element = index; element < value_size; element += 32 * SIMDGROUPS) {
    float sum = 0.0f;
    for (uint i = 0; i < SIMDGROUPS; i++) sum = fma(partial[i][element], weight_of(maxima[i], highest), sum);
    store_element(out, query_row * value_size + element, out_type, everything > 0.0f ? sum / everything : 0.0f);
  }
}
