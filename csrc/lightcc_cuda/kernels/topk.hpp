// Arguments of the kernels of top-k compression, for all tensors of a bucket that have one dtype:
// float32, float16 or bfloat16.
//
// A step is the same launches every time, whatever the values, so the host decides nothing and
// waits for nothing. Kernels of a path that is not taken return at once. What is chosen is what
// HostResidual::compress() chooses (compression/topk/topk_step.cpp), bit for bit:
//
//   begin                    threshold from the forecast, if there is one
//   select, round 0          one pass over the elements: list, next residual, next velocity
//   sample, judge            was the forecast good? then the next one; otherwise the exact path:
//   count, descend           kTopkRounds times: 12 bits of the k-th largest magnitude
//   select, round 1
//   finish                   header and counts of the list
//   encode                   values as float16 with a power of two for each block, where asked
//   measure                  a sample of what came in, and of the residual
//   pack                     all lists together, as they travel, and what became of each tensor
//
// They are as many for a table of tensors as for one. A list has the parts of the wire format
// (compression/topk/list_layout.hpp), values where they are if it is full, until pack moves them.
#pragma once

#include "lightcc_cuda/kernels/indices.hpp"

namespace lightcc::cuda {

/// Elements of a block of the wire format, and of what one block of threads takes.
inline constexpr u32 kTopkWireBlock = 65536;
inline constexpr u32 kTopkTile = 8192;
inline constexpr u32 kTopkTilesOfBlock = kTopkWireBlock / kTopkTile;
inline constexpr u32 kTopkThreads = 256;
inline constexpr u32 kTopkWarps = kTopkThreads / kWarpLanes;
inline constexpr u32 kTopkBins = 4096;
inline constexpr u32 kTopkBinBits = 12;
/// Places are counted in 31 bits.
inline constexpr u64 kMaxTopkElements = (u64{1} << 31) - 1;
/// Tensors of a table.
inline constexpr u32 kMaxTopkTensors = 256;
/// Where lists begin that are packed.
inline constexpr u64 kTopkPackAlignment = 16;

/// Rounds of count and descend.
inline constexpr u32 kTopkRounds = 3;

struct TopkForecastBits {
  double threshold;  ///< 0: to be found exactly.
  double ideal;
  u64 k;
};

/// The first word of a list's header, but for dtype and flags.
inline constexpr u64 kTopkMagic = u64{'L'} | u64{'T'} << 8 | u64{'K'} << 16 | u64{1} << 24;
inline constexpr u32 kTopkDtypeShift = 32;
inline constexpr u32 kTopkFlagsShift = 40;
inline constexpr u64 kTopkFlagNonFinite = 1;
inline constexpr u64 kTopkFlagScales = 2;

enum class TopkPath : u32 { kEverything, kForecast, kExact };

/// What a tensor's kernels tell one another, in device memory.
struct TopkProgress {
  // As in the row.
  TopkForecastBits forecast;
  u64 step;
  u32 current;

  // The step at hand.
  TopkPath path;
  TopkForecastBits next;
  u64 key;            ///< Magnitudes from here on are selected, as the bits of a lane without sign.
  u32 ties;           ///< How many of those equal to `key` are selected, the first ones.
  u32 runs_in_round;  ///< 1 + the round in which select runs; 0: in none.
  u32 selected;       ///< Elements that reached the key.
  u32 listed;         ///< Those that found room.
  u32 non_finite;
  u32 reached;  ///< Elements of the sample that reached the key.
  // The search for the exact threshold.
  u64 prefix;
  u32 shift;   ///< Bits that are not in the prefix yet.
  u32 wanted;  ///< Rank of the k-th largest among the keys that begin with the prefix.

  double input_energy;  ///< StepEnergy of the step, as measured.
  double kept_energy;
};

/// A shard and where its list goes; a table of them in device memory.
struct TopkTensor {
  u64 first;        ///< Tiles of the tensors before it in the table.
  u64 first_part;   ///< Parts of the tensors before it.
  u64 numel;        ///< 1 .. kMaxTopkElements.
  const u8* shard;  ///< Any alignment; only read.
  u8* residual[2];  ///< float32, aligned to 16 bytes.
  u8* velocity[2];  ///< The same, or null: no momentum correction.
  TopkProgress* progress;
  u64* status;        ///< Two words for each tile.
  u32* bins;          ///< kTopkBins.
  u32* block_begins;  ///< Entries before each block of the wire format.
  // The list. Room for `capacity` entries.
  u64* header;     ///< 16 bytes.
  u32* counts;     ///< For each block.
  i16* exponents;  ///< The same; null without scales.
  u16* offsets;
  u8* values;  ///< As in the list, aligned to an element; with scales float16.
  u8* lanes;   ///< With scales: the float32 values before that. Otherwise null.
  u64 k;
  u64 capacity;
  double momentum;
  // As committed.
  TopkForecastBits forecast;
  u64 step;         ///< Steps before this one.
  u32 current;      ///< Which of the two residuals (and velocities) is; the other one is written.
  u32 exact;        ///< Exactly k entries.
  u32 dtype;        ///< DataType.
  u32 parts;        ///< Blocks of threads that share it in sample, count and pack.
  u32 value_bytes;  ///< Size of a value of the list.
};

struct TopkArguments {
  const TopkTensor* tensors;
  u32* tile_counters;  ///< Two: from which blocks draw their tile as they begin to run.
  // For pack.
  TopkProgress* reports;  ///< One for each tensor.
  u8* packed;             ///< Aligned to kTopkPackAlignment, as each list in it is.
  u32 count;              ///< Tensors.
  u32 round;              ///< For select.
};
static_assert(sizeof(TopkArguments) == 40 && sizeof(TopkProgress) == 128 &&
              sizeof(TopkTensor) == 224);

}  // namespace lightcc::cuda

// X(name, ...) for each kernel. Blocks of threads: select and encode have one for each tile,
// sample, count and pack `parts` for each tensor, and the others one for each.
#define LIGHTCC_TOPK_SELECT_KERNELS(X) LIGHTCC_OF_ELEMENTS(X, lightcc_topk_select, select)
#define LIGHTCC_ALL_TOPK_KERNELS(X)                 \
  LIGHTCC_TOPK_SELECT_KERNELS(X)                    \
  LIGHTCC_OF_ELEMENTS(X, lightcc_topk_count, count) \
  X(lightcc_topk_begin)                             \
  X(lightcc_topk_sample)                            \
  X(lightcc_topk_judge)                             \
  X(lightcc_topk_descend)                           \
  X(lightcc_topk_finish)                            \
  X(lightcc_topk_encode)                            \
  X(lightcc_topk_measure)                           \
  X(lightcc_topk_pack)
