// What top-k compression computes of one element, as compression/kernels/topk_block.hpp says it:
//   u = velocity * momentum + shard   (without momentum: u = shard)
//   acc = u + residual
#pragma once

#include "lightcc_cuda/kernels/elements.hpp"
#include "lightcc_cuda/kernels/topk.hpp"

namespace lightcc::cuda {

/// Magnitudes as integers: for finite numbers these compare as the magnitudes do.
template <typename Key, u32 FractionBits, int Bias>
struct KeyFields {
  using Type = Key;
  static constexpr u32 kBits = 8 * sizeof(Key) - 1;
  static constexpr u32 kFractionBits = FractionBits;
  static constexpr int kBias = Bias;
  static constexpr Key kInfinity = (Key{2} * Bias + 1) << FractionBits;
  static constexpr Key kMax = kInfinity - 1;                             ///< The largest number.
  static constexpr Key kNan = kInfinity | Key{1} << (FractionBits - 1);  ///< What results have.
};
template <typename Lane>
struct KeyOf : KeyFields<u32, 23, 127> {};
template <>
struct KeyOf<double> : KeyFields<u64, 52, 1023> {};

template <typename Lane>
LIGHTCC_DEVICE_MEMBER typename KeyOf<Lane>::Type key_of(Lane lane) {
  using Key = typename KeyOf<Lane>::Type;
  return __builtin_bit_cast(Key, lane) & static_cast<Key>(~Key{0} >> 1);
}

/// 2^exponent, of a normal number.
template <typename Lane>
LIGHTCC_DEVICE_MEMBER Lane power_of_two(int exponent) {
  using Key = typename KeyOf<Lane>::Type;
  const auto biased = static_cast<Key>(exponent + KeyOf<Lane>::kBias);
  return __builtin_bit_cast(Lane, static_cast<Key>(biased << KeyOf<Lane>::kFractionBits));
}

inline constexpr u32 kLaneElements = 4;
/// How many batches of four elements a lane reads at once.
inline constexpr u32 kBatches = 2;

template <typename Lane>
struct Accumulated {
  Lane u[kLaneElements];
  Lane acc[kLaneElements];
};

/// Four values from an array that is aligned to 16 bytes.
template <typename T>
LIGHTCC_DEVICE_MEMBER void load_four(const u8* from, T (&to)[kLaneElements]) {
  constexpr u32 kPart = sizeof(T) == 8 ? 2 : 4;
  LIGHTCC_UNROLL
  for (u32 i = 0; i < kLaneElements; i += kPart) {
    const auto part = Chunk<T, kPart>::load(from + i * sizeof(T));
    LIGHTCC_UNROLL
    for (u32 j = 0; j < kPart; ++j) {
      to[i + j] = part.at[j];
    }
  }
}

template <typename T>
LIGHTCC_DEVICE_MEMBER void store_four(u8* to, const T (&from)[kLaneElements]) {
  constexpr u32 kPart = sizeof(T) == 8 ? 2 : 4;
  LIGHTCC_UNROLL
  for (u32 i = 0; i < kLaneElements; i += kPart) {
    Chunk<T, kPart> part;
    LIGHTCC_UNROLL
    for (u32 j = 0; j < kPart; ++j) {
      part.at[j] = from[i + j];
    }
    part.store(to + i * sizeof(T));
  }
}

template <typename Element>
struct TopkReader {
  using Wire = typename Element::Wire;
  using Lane = typename Element::Lane;

  LIGHTCC_DEVICE_MEMBER explicit TopkReader(const TopkTensor& t)
      : shard(t.shard),
        residual(t.residual[t.progress->current]),
        velocity(t.velocity[t.progress->current]),
        numel(t.numel),
        momentum(static_cast<Lane>(t.momentum)),
        is_aligned_shard(is_aligned(reinterpret_cast<u64>(t.shard),
                                    min_of<u64>(kVectorBytes, kLaneElements * sizeof(Wire)))) {}

  LIGHTCC_DEVICE_MEMBER Lane step(Wire wire, Lane before) const {
    const Lane given = Element::decode(wire);
    return velocity == nullptr ? given : before * momentum + given;
  }
  LIGHTCC_DEVICE_MEMBER Lane step_at(u64 i) const {
    const Lane before = velocity == nullptr ? Lane{0} : lane_at(velocity, i);
    return step(load_any<Wire>(shard + i * sizeof(Wire)), before);
  }
  LIGHTCC_DEVICE_MEMBER Lane acc_at(u64 i) const { return step_at(i) + lane_at(residual, i); }

  /// Batches of four elements that exist, from `at` and at + stride on, which are multiples of 4.
  /// All of them are on their way before the first is computed with.
  LIGHTCC_DEVICE_MEMBER void accumulate(u64 at,
                                        u64 stride,
                                        Accumulated<Lane> (&to)[kBatches]) const {
    Wire wires[kBatches][kLaneElements];
    Lane before[kBatches][kLaneElements] = {};
    Lane kept[kBatches][kLaneElements];
    LIGHTCC_UNROLL
    for (u32 i = 0; i < kBatches; ++i) {
      const u64 first = at + i * stride;
      if (is_aligned_shard) {
        load_four<Wire>(shard + first * sizeof(Wire), wires[i]);
      } else {
        LIGHTCC_UNROLL
        for (u32 j = 0; j < kLaneElements; ++j) {
          wires[i][j] = load_any<Wire>(shard + (first + j) * sizeof(Wire));
        }
      }
      if (velocity != nullptr) {
        load_four<Lane>(velocity + first * sizeof(Lane), before[i]);
      }
      load_four<Lane>(residual + first * sizeof(Lane), kept[i]);
    }
    LIGHTCC_UNROLL
    for (u32 i = 0; i < kBatches; ++i) {
      LIGHTCC_UNROLL
      for (u32 j = 0; j < kLaneElements; ++j) {
        to[i].u[j] = step(wires[i][j], before[i][j]);
        to[i].acc[j] = to[i].u[j] + kept[i][j];
      }
    }
  }

  LIGHTCC_DEVICE_MEMBER static Lane lane_at(const u8* array, u64 i) {
    return load_input<Lane>(array + i * sizeof(Lane));
  }

  const u8* shard;
  const u8* residual;
  const u8* velocity;
  u64 numel;
  Lane momentum;
  bool is_aligned_shard;
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
