// softmax(scale q k^T) v for few queries: a threadgroup for each query of each head. Simdgroups take turns at the keys,
// lanes share the elements of a head; what the simdgroups found is put together at the end. Many keys are split over
// several threadgroups; then another kernel puts together what those found.
#include "attention_parts.h"

constant bool is_split [[function_constant(9)]];
constant constexpr uint QUERY_PARTS = (HEAD_SIZE + 31) / 32, VALUE_PARTS = (VALUE_SIZE + 31) / 32;
constant constexpr uint SIMDGROUPS = 8;

kernel void attention_vector(device const uchar* q [[buffer(0)]], device const uchar* k [[buffer(1)]],
                             device const uchar* v [[buffer(2)]], device uchar* out [[buffer(3)]],
                             constant AttentionParameters& size [[buffer(4)]],
                             device float* found [[buffer(5), function_constant(is_split)]],
                             uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],
                             uint index [[thread_index_in_threadgroup]],
                             uint simdgroup [[simdgroup_index_in_threadgroup]],
                             uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float partial[SIMDGROUPS][32 * VALUE_PARTS];
  threadgroup float maxima[SIMDGROUPS], totals[SIMDGROUPS];
  uint query = group.x, head = group.y;
  ulong query_row = ulong(head) * size.queries + query;
  ulong keys_start = ulong(head / size.group) * size.keys;
  float own_query[QUERY_PARTS], sums[VALUE_PARTS];
  UNROLL for (uint i = 0; i < QUERY_PARTS; i++) {
    uint element = lane + 32 * i;
    own_query[i] = element < head_size ? load_element(q, query_row * head_size + element, q_type) : 0.0f;
  }
  UNROLL for (uint i = 0; i < VALUE_PARTS; i++) sums[i] = 0.0f;
  float largest = -INFINITY, total = 0.0f;
  uint start = first_key(query, size), end = last_key(query, size);
  if (is_split) {
    uint share = start < end ? (end - start + groups.z - 1) / groups.z : 0;
    start += group.z * share;
    end = min(end, start + share);
  }
  for (uint key = start + simdgroup; key < end; key += SIMDGROUPS) {
    float product = 0.0f;
    UNROLL for (uint i = 0; i < QUERY_PARTS; i++) {
      uint element = lane + 32 * i;
      if (element < head_size)
        product = fma(own_query[i], load_element(k, (keys_start + key) * head_size + element, k_type), product);
    }
    float value = score(simd_sum(product), size);
    float new_largest = max(largest, value);
    float factor = weight_of(largest, new_largest), weight = weight_of(value, new_largest);
    total = fma(total, factor, weight);
    UNROLL for (uint i = 0; i < VALUE_PARTS; i++) {
      uint element = lane + 32 * i;
      if (element < value_size)
        sums[i] = fma(weight, load_element(v, (keys_start + key) * value_size + element, v_type), sums[i] * factor);
    }
    largest = new_largest;
  }

  UNROLL for (uint i = 0; i < VALUE_PARTS; i++) partial[simdgroup][lane + 32 * i] = sums[i];
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
    if (is_split) found[(query_row * groups.z + group.z) * (value_size + 2) + element] = sum;
    else store_element(out, query_row * value_size + element, out_type, everything > 0.0f ? sum / everything : 0.0f);
  }
  if (is_split && index == 0) {
    device float* state = found + (query_row * groups.z + group.z) * (value_size + 2) + value_size;
    state[0] = highest;
    state[1] = everything;
  }
}

// One threadgroup for each query of each head; `parts` are what so many threadgroups found: sums, maximum, total.
kernel void attention_combine(device const float* found [[buffer(0)]], device uchar* out [[buffer(1)]],
                              constant uint& parts [[buffer(2)]], uint row [[threadgroup_position_in_grid]],
                              uint index [[thread_index_in_threadgroup]], uint threads [[threads_per_threadgroup]]) {
  device const float* first = found + ulong(row) * parts * (value_size + 2);
  float highest = -INFINITY, everything = 0.0f;
  for (uint i = 0; i < parts; i++) highest = max(highest, first[i * (value_size + 2) + value_size]);
  for (uint i = 0; i < parts; i++) {
    device const float* state = first + i * (value_size + 2) + value_size;
    everything = fma(state[1], weight_of(state[0], highest), everything);
  }
  for (uint element = index; element < value_size; element += threads) {
    float sum = 0.0f;
    for (uint i = 0; i < parts; i++) {
      device const float* part = first + i * (value_size + 2);
      sum = fma(part[element], weight_of(part[value_size], highest), sum);
    }
    store_element(out, ulong(row) * value_size + element, out_type, everything > 0.0f ? sum / everything : 0.0f);
  }
}
