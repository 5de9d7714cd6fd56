// The pass of top-k compression: what reaches the threshold goes to the list, in order, and the
// rest becomes the next residual. It reads shard and residual once and writes the residual once.
//
// A warp takes 1024 elements, a lane four of each 128. A lane remembers its hits as bits of a word.
// When the entries before the tile are known, it computes its few hits again (they are in the
// cache) and writes them, so that no buffer can overflow. Entries before a tile come from a
// decoupled look-back (Merrill, Garland: "Single-pass Parallel Prefix Scan with Decoupled
// Look-back", 2016) in the order in which blocks begin to run.
#include "lightcc_cuda/kernels/topk_elements.hpp"

namespace lightcc::cuda {

/// Hits above the key, and hits that are just the key.
struct HitCounts {
  u32 above;
  u32 ties;

  LIGHTCC_DEVICE_MEMBER HitCounts operator+(HitCounts other) const {
    return {above + other.above, ties + other.ties};
  }
};

// A word of `status`: 2 bits that say whose count it is, 31 bits of ties, 31 bits above.
inline constexpr u64 kOfTile = 1;    // The count of the tile alone.
inline constexpr u64 kUpToTile = 2;  // The count of all tiles up to this one.

LIGHTCC_DEVICE u64 status_word(u64 whose, HitCounts counts) {
  return whose << 62 | u64{counts.ties} << 31 | counts.above;
}
LIGHTCC_DEVICE HitCounts counts_of(u64 word) {
  constexpr u64 kMask = (u64{1} << 31) - 1;
  return {static_cast<u32>(word & kMask), static_cast<u32>(word >> 31 & kMask)};
}

/// By one warp: hits of all tiles before `tile`, which has `own`. Each lane looks at one tile.
LIGHTCC_DEVICE HitCounts look_back(u64* status, u64 tile, HitCounts own) {
  const u32 lane = thread_index() % kWarpLanes;
  if (lane == 0) {
    publish(status + tile, status_word(tile == 0 ? kUpToTile : kOfTile, own));
  }
  HitCounts before{0, 0};
  for (u64 end = tile; end > 0; end -= min_of<u64>(end, kWarpLanes)) {
    u64 word = status_word(kUpToTile, {0, 0});
    if (lane < end) {
      for (word = observe(status + (end - 1 - lane)); word >> 62 == 0;) {
        spin();
        word = observe(status + (end - 1 - lane));
      }
    }
    const u32 complete = vote(word >> 62 == kUpToTile);
    // Lanes up to the first one whose word is complete; complete & -complete is its bit.
    const u32 bit = complete & (0 - complete);
    const bool counts = complete == 0 || 1U << lane <= bit;
    const HitCounts seen = counts_of(word);
    before.above += sum_of_warp(counts ? seen.above : 0);
    before.ties += sum_of_warp(counts ? seen.ties : 0);
    if (complete != 0) {
      break;
    }
  }
  if (lane == 0 && tile != 0) {
    publish(status + tile, status_word(kUpToTile, before + own));
  }
  return before;
}

template <typename Element>
struct Selector {
  using Wire = typename Element::Wire;
  static constexpr u32 kWarpElements = kTopkTile / kTopkWarps;
  static constexpr u32 kStepElements = kWarpLanes * kLaneElements;
  static constexpr u32 kSteps = kWarpElements / kStepElements;
  static_assert(kSteps * kLaneElements == 32);  // The bits of a word.

  const TopkTensor& t;
  const BatchReader<Element>& reader;
  float* next_residual;
  float* next_velocity;
  u64 start;  ///< The warp's first element.
  u32 key;
  u32 max_ties;
  u32 hits;
  u32 ties;  ///< Hits that are equal to the key.
  bool bad;

  /// Entries of the list after so many hits.
  LIGHTCC_DEVICE_MEMBER u32 listed(HitCounts before) const {
    const u64 wanted = u64{before.above} + min_of(before.ties, max_ties);
    return static_cast<u32>(min_of<u64>(wanted, t.capacity));
  }

  LIGHTCC_DEVICE_MEMBER void take(u32 bit, float& u, float& acc) {
    const u32 magnitude = key_of(acc);
    bad = bad || magnitude >= kInfiniteKey;
    if (magnitude >= key) {
      hits |= 1U << bit;
      ties |= (magnitude == key ? 1U : 0U) << bit;
      u = 0.0F;
      acc = 0.0F;
    }
  }

  /// Writes what is kept back as if every hit were listed.
  LIGHTCC_DEVICE_MEMBER void find_hits() {
    const u32 lane = thread_index() % kWarpLanes;
    LIGHTCC_NO_UNROLL
    for (u32 step = 0; step < kSteps; step += kBatches) {
      const u64 at = start + step * kStepElements + lane * kLaneElements;
      if (reader.has(at, kStepElements)) {
        Accumulated four[kBatches];
        reader.accumulate(at, kStepElements, four);
        LIGHTCC_UNROLL
        for (u32 i = 0; i < kBatches; ++i) {
          const u64 first = at + i * kStepElements;
          LIGHTCC_UNROLL
          for (u32 j = 0; j < kLaneElements; ++j) {
            take((step + i) * kLaneElements + j, four[i].u[j], four[i].acc[j]);
          }
          store_four(next_residual + first, four[i].acc);
          if (next_velocity != nullptr) {
            store_four(next_velocity + first, four[i].u);
          }
        }
        continue;
      }
      for (u32 j = 0; j < kBatches * kLaneElements; ++j) {
        const u64 element = at + j / kLaneElements * kStepElements + j % kLaneElements;
        if (element >= reader.numel) {
          break;
        }
        float u = reader.step_at(element);
        float acc = u + reader.kept_at(element);
        take(step * kLaneElements + j, u, acc);
        next_residual[element] = acc;
        if (next_velocity != nullptr) {
          next_velocity[element] = u;
        }
      }
    }
  }

  /// Writes the hits, of which so many come before the warp's.
  LIGHTCC_DEVICE_MEMBER void write_hits(HitCounts before) const {
    const u32 lane = thread_index() % kWarpLanes;
    const u32 lower_lanes = (1U << lane) - 1;
    LIGHTCC_NO_UNROLL
    for (u32 step = 0; step < kSteps; ++step) {
      const u32 mine = hits >> (step * kLaneElements) & 15U;
      const u32 my_ties = ties >> (step * kLaneElements) & 15U;
      if (vote(mine != 0) == 0) {
        continue;
      }
      HitCounts here = before;  // Before the lane's own hits.
      LIGHTCC_UNROLL
      for (u32 j = 0; j < kLaneElements; ++j) {
        const u32 all = vote((mine >> j & 1U) != 0);
        const u32 of_ties = vote((my_ties >> j & 1U) != 0);
        here.above += count_bits(all & ~of_ties & lower_lanes);
        here.ties += count_bits(of_ties & lower_lanes);
        before.above += count_bits(all & ~of_ties);
        before.ties += count_bits(of_ties);
      }
      for (u32 j = 0; j < kLaneElements; ++j) {
        if ((mine >> j & 1U) == 0) {
          continue;
        }
        const bool is_tie = (my_ties >> j & 1U) != 0;
        const bool is_wanted = !is_tie || here.ties < max_ties;
        write_hit(start + step * kStepElements + lane * kLaneElements + j, is_wanted, listed(here));
        here.above += is_tie ? 0 : 1;
        here.ties += is_tie ? 1 : 0;
      }
    }
  }

  /// Lists an element as entry `entry`, or puts it back.
  LIGHTCC_DEVICE_MEMBER void write_hit(u64 element, bool is_wanted, u32 entry) const {
    const float acc = reader.acc_at(element);
    if (!is_wanted || entry >= t.capacity) {
      next_residual[element] = acc;
      if (next_velocity != nullptr) {
        next_velocity[element] = reader.step_at(element);
      }
      return;
    }
    t.offsets[entry] = static_cast<u16>(element % kTopkWireBlock);
    if (t.lanes != nullptr) {
      reinterpret_cast<float*>(t.lanes)[entry] = acc;
    } else if constexpr (Element::kRounds) {
      const Wire wire = round_to_wire(acc);
      reinterpret_cast<Wire*>(t.values)[entry] = wire;
      next_residual[element] = acc - Element::decode(wire);  // What rounding takes away.
    } else {
      reinterpret_cast<float*>(t.values)[entry] = acc;
    }
  }

  /// What is finite stays finite.
  LIGHTCC_DEVICE_MEMBER static Wire round_to_wire(float lane) {
    const Wire wire = Element::encode(lane);
    const bool overflowed = (wire & 0x7fffU) == Element::kInfinity && key_of(lane) < kInfiniteKey;
    return overflowed ? static_cast<Wire>(wire - 1U) : wire;
  }
};

template <typename Element>
LIGHTCC_DEVICE_MEMBER void select(const TopkArguments& a) {
  LIGHTCC_SHARED(u32, drawn, 1);
  LIGHTCC_SHARED(HitCounts, of_warps, kTopkWarps);
  LIGHTCC_SHARED(HitCounts, of_earlier_tiles, 1);
  if (thread_index() == 0) {
    drawn[0] = atomic_add(a.tile_counters + a.round, 1);
  }
  sync_block();
  const TopkTensor& t = a.tensors[row_at(a.tensors, a.count, drawn[0])];
  TopkProgress& progress = *t.progress;
  if (progress.runs_in_round != a.round + 1) {
    return;
  }
  const u64 tile = drawn[0] - t.first;
  const u64 tiles = tiles_of(t.numel, kTopkTile);
  const u32 warp = thread_index() / kWarpLanes;
  const u32 lane = thread_index() % kWarpLanes;
  const u32 next = 1 - progress.current;
  const BatchReader<Element> reader(t);
  Selector<Element> selector{t,
                             reader,
                             reinterpret_cast<float*>(t.residual[next]),
                             reinterpret_cast<float*>(t.velocity[next]),
                             tile * kTopkTile + u64{warp} * Selector<Element>::kWarpElements,
                             static_cast<u32>(progress.key),
                             progress.ties,
                             0,
                             0,
                             false};
  selector.find_hits();
  if (vote(selector.bad) != 0 && lane == 0) {
    atomic_or(&progress.non_finite, 1);
  }
  const u32 all_of_warp = sum_of_warp(count_bits(selector.hits));
  const u32 ties_of_warp = sum_of_warp(count_bits(selector.ties));
  if (lane == 0) {
    of_warps[warp] = {all_of_warp - ties_of_warp, ties_of_warp};
  }
  sync_block();
  HitCounts own{0, 0};
  HitCounts before{0, 0};
  for (u32 w = 0; w < kTopkWarps; ++w) {
    before = w < warp ? before + of_warps[w] : before;
    own = own + of_warps[w];
  }
  if (warp == 0) {
    const HitCounts earlier = look_back(t.status + a.round * tiles, tile, own);
    if (lane == 0) {
      of_earlier_tiles[0] = earlier;
      if (tile % kTopkTilesOfBlock == 0) {
        t.block_begins[tile / kTopkTilesOfBlock] = selector.listed(earlier);
      }
      if (tile + 1 == tiles) {
        const HitCounts total = earlier + own;
        progress.selected = total.above + total.ties;
        progress.listed = selector.listed(total);
      }
    }
  }
  sync_block();
  selector.write_hits(before + of_earlier_tiles[0]);
}

#define LIGHTCC_DEFINE(name, function, type)                    \
  LIGHTCC_KERNEL(kTopkThreads, 3) name(const TopkArguments a) { \
    function<type>(a);                                          \
  }
LIGHTCC_TOPK_SELECT_KERNELS(LIGHTCC_DEFINE)

}  // namespace lightcc::cuda
