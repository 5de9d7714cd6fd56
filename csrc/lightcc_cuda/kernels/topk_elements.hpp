// What top-k compression computes of one element, as compression/kernels/topk_block.hpp says it:
//   u = velocity * momentum + shard   (without momentum: u = shard)
//   acc = u + residual
#pragma once

#include "lightcc_cuda/kernels/elements.hpp"
#include "lightcc_cuda/kernels/topk.hpp"

namespace lightcc::cuda {

// Magnitudes as integers: for finite numbers these compare as the magnitudes do.
inline constexpr u32 kKeyBits = 31;
inline constexpr u32 kFractionBits = 23;
inline constexpr int kExponentBias = 127;
inline constexpr u32 kInfiniteKey = 0x7f800000;

LIGHTCC_DEVICE u32 key_of(float lane) {
  return __builtin_bit_cast(u32, lane) & ~(1U << kKeyBits);
}

/// 2^exponent, of a normal number.
LIGHTCC_DEVICE float power_of_two(int exponent) {
  return __builtin_bit_cast(float, static_cast<u32>(exponent + kExponentBias) << kFractionBits);
}

inline constexpr u32 kLaneElements = 4;
/// How many batches of four elements a lane reads at once.
inline constexpr u32 kBatches = 2;

struct Accumulated {
  float u[kLaneElements];
  float acc[kLaneElements];
};

/// Four neighbours from an array that is aligned to all of them.
template <typename T>
LIGHTCC_DEVICE_MEMBER void load_four(const u8* from, T (&to)[kLaneElements]) {
  const auto all = Chunk<T, kLaneElements>::load(from);
  LIGHTCC_UNROLL
  for (u32 j = 0; j < kLaneElements; ++j) {
    to[j] = all.at[j];
  }
}

LIGHTCC_DEVICE void store_four(float* to, const float (&from)[kLaneElements]) {
  Chunk<float, kLaneElements> all;
  LIGHTCC_UNROLL
  for (u32 j = 0; j < kLaneElements; ++j) {
    all.at[j] = from[j];
  }
  all.store(reinterpret_cast<u8*>(to));
}

/// What a step reads, one element at a time.
struct TopkReader {
  LIGHTCC_DEVICE_MEMBER TopkReader(const TopkTensor& t, ElementType of)
      : shard(t.shard),
        residual(reinterpret_cast<const float*>(t.residual[t.progress->current])),
        velocity(reinterpret_cast<const float*>(t.velocity[t.progress->current])),
        numel(t.numel),
        momentum(static_cast<float>(t.momentum)),
        type(of) {}

  LIGHTCC_DEVICE_MEMBER float step(float given, float before) const {
    return velocity == nullptr ? given : before * momentum + given;
  }
  LIGHTCC_DEVICE_MEMBER float step_at(u64 i) const {
    const float before = velocity == nullptr ? 0.0F : load_input<float>(velocity + i);
    return step(load_lane(type, shard, i), before);
  }
  LIGHTCC_DEVICE_MEMBER float kept_at(u64 i) const { return load_input<float>(residual + i); }
  LIGHTCC_DEVICE_MEMBER float acc_at(u64 i) const { return step_at(i) + kept_at(i); }

  const u8* shard;
  const float* residual;
  const float* velocity;
  u64 numel;
  float momentum;
  ElementType type;
};

/// The same in batches of four elements, of one type.
template <typename Element>
struct BatchReader : TopkReader {
  using Wire = typename Element::Wire;
  static constexpr u32 kBatchBytes = kLaneElements * sizeof(Wire);

  LIGHTCC_DEVICE_MEMBER explicit BatchReader(const TopkTensor& t)
      : TopkReader(t, Element::kType),
        is_aligned_shard(is_aligned(reinterpret_cast<u64>(t.shard), kBatchBytes)),
        // No element where they are at odd addresses: those are read one by one.
        end(is_aligned(reinterpret_cast<u64>(t.shard), sizeof(Wire)) ? t.numel : 0) {}

  /// Whether accumulate() may read from `at` on.
  LIGHTCC_DEVICE_MEMBER bool has(u64 at, u64 stride) const {
    return at + (kBatches - 1) * stride + kLaneElements <= end;
  }
  /// Batches from `at` and at + stride on, which are multiples of 4. All of them are on their way
  /// before the first is computed with.
  LIGHTCC_DEVICE_MEMBER void accumulate(u64 at, u64 stride, Accumulated (&to)[kBatches]) const {
    Wire wires[kBatches][kLaneElements];
    float before[kBatches][kLaneElements] = {};
    float kept[kBatches][kLaneElements];
    LIGHTCC_UNROLL
    for (u32 i = 0; i < kBatches; ++i) {
      const u64 first = at + i * stride;
      if (is_aligned_shard) {
        load_four<Wire>(shard + first * sizeof(Wire), wires[i]);
      } else {
        LIGHTCC_UNROLL
        for (u32 j = 0; j < kLaneElements; ++j) {
          wires[i][j] = load_input<Wire>(shard + (first + j) * sizeof(Wire));
        }
      }
      if (velocity != nullptr) {
        load_four<float>(reinterpret_cast<const u8*>(velocity + first), before[i]);
      }
      load_four<float>(reinterpret_cast<const u8*>(residual + first), kept[i]);
    }
    LIGHTCC_UNROLL
    for (u32 i = 0; i < kBatches; ++i) {
      LIGHTCC_UNROLL
      for (u32 j = 0; j < kLaneElements; ++j) {
        to[i].u[j] = step(Element::decode(wires[i][j]), before[i][j]);
        to[i].acc[j] = to[i].u[j] + kept[i][j];
      }
    }
  }

  bool is_aligned_shard;
  u64 end;
};

/// The tensor of a block of threads, where each has `parts` of them.
LIGHTCC_DEVICE u32 row_of_part(const TopkArguments& a) {
  return last_row<&TopkTensor::first_part>(a.tensors, a.count, block_index());
}

/// The sum of a value over the warp.
LIGHTCC_DEVICE u32 sum_of_warp(u32 value) {
  LIGHTCC_UNROLL
  for (u32 distance = kWarpLanes / 2; distance > 0; distance /= 2) {
    value += read_lane_across(value, distance);
  }
  return value;
}

}  // namespace lightcc::cuda
