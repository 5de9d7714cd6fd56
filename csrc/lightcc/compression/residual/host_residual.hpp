// Error feedback for one tensor's shard: what was not sent yet, and the choice of what is sent now.
//
// A step adds the shard to the residual, acc = shard + residual, lists the elements of acc that are
// largest in magnitude and keeps the others as the new residual: sent + residual == acc, so nothing
// is ever lost, only late (Stich et al., "Sparsified SGD with Memory", 2018; Karimireddy et al.,
// "Error Feedback Fixes SignSGD", 2019).
//
// In steady state that is one pass over memory: 12 bytes per float32 element. It takes the
// threshold that the pass before predicted from a sampled histogram of magnitudes. When there is
// none, or it selects fewer than 2/3 k or more than 5/4 k elements, the exact threshold is found
// first (two passes more, few data aside: a histogram of the upper bits, then the elements of the
// bin in which the k-th largest lies).
//
// A step can be undone until it is committed, because a NaN on any rank has all skip the step:
// the new residual is written to a second buffer, and commit() swaps them. acc is rounded and does
// not determine what it was made from, so there is no undoing in place. The shard itself is only
// read.
//
// With momentum correction (Lin et al., "Deep Gradient Compression", 2018) a velocity is kept, too:
//   velocity = momentum * velocity + shard;  acc = residual + velocity
// and both are cleared where an element is sent.
//
// A step can also send all elements, quantised (quantize.hpp); what rounding takes away is then the
// new residual. The residual is the same thing for all kinds of steps, so they may follow each
// other.
//
// All results (list, codes, residual, threshold) have the same bits at every SIMD level.
//
// Thread: one at a time. Blocks: no.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/compression/residual/lane_pair.hpp"
#include "lightcc/compression/residual/shard.hpp"
#include "lightcc/compression/residual/shard_residual.hpp"
#include "lightcc/compression/residual/step_energy.hpp"
#include "lightcc/compression/topk/topk_step.hpp"

namespace lightcc {

class HostResidual final : public ShardResidual {
 public:
  /// A residual of zeros. `dtype` is floating point. Takes memory for two residuals: 8 bytes per
  /// element, 16 for float64, the double of that with momentum correction. std::bad_alloc may be
  /// thrown, as by any container.
  HostResidual(DataType dtype, std::size_t numel);

  DataType dtype() const override { return dtype_; }
  std::size_t numel() const override { return numel_; }
  /// Committed steps.
  std::uint64_t step() const { return step_; }
  /// The magnitude from which on the next step selects; 0: to be found exactly.
  double threshold() const { return forecast_.threshold; }
  bool has_velocity() const { return velocity_.exists(); }
  StepEnergy energy() const override { return energy_; }
  HostResidual* on_host() override { return this; }
  /// Element `i` of the residual, or of the velocity (0 without one), as committed.
  double residual_at(std::size_t i) const;
  double velocity_at(std::size_t i) const;

  /// Writes the list of this step to `out`, which has at least max_list_bytes(numel, capacity,
  /// {dtype, fp16}) bytes. `shard` has numel elements of `dtype`, any alignment, and is only read.
  ///
  /// The state changes only with commit(); until then, or rollback(), no other step may begin. A
  /// step that is not finite must be rolled back, on every rank (merge_lists() says so to all).
  ///
  /// Without `exact` a list has at most `capacity` entries, about k. Elements that are zero are not
  /// listed unless k == numel. Errors: kInvalidArgument for a request outside the ranges above or
  /// an `out` that is too short; kInternal while a step is pending. Nothing has changed then.
  Result<TopkOutcome> compress(const std::byte* shard,
                               const TopkRequest& request,
                               std::span<std::byte> out);

  /// For a step in which the tensor travels dense: shard = acc, and the residual (and velocity) is
  /// cleared, or keeps what rounding to float16 or bfloat16 takes away. Same rules as compress():
  /// commit() or rollback() follows. rollback() restores the state, not the shard. If acc is not
  /// finite the shard says so itself. Errors: as compress().
  Status flush_into(std::byte* shard, double momentum = 0.0, SimdLevel level = detect_simd_level());

  /// For a step in which all elements travel, quantised (quantize.hpp): writes `parts` of the shard
  /// one after another. They are the shard, in order, cut between blocks of 128. Part `own`, if
  /// there is one, is left out: its acc waits for quantize_sum(). `compressor`: a quantised one.
  /// Same rules as compress(). Returns false where acc of the others is not finite. Errors:
  /// kInternal while a step is pending.
  Result<bool> quantize(const std::byte* shard,
                        std::span<const ShardRange> parts,
                        std::optional<std::size_t> own,
                        Compressor compressor,
                        std::span<std::byte> out,
                        SimdLevel level = detect_simd_level());
  /// The same in ranges, in any order, each once: begin_quantizing(), then quantize_range() or
  /// skip_range() of each, then commit() or rollback(). `in`: elements of the range, null: zeros. A
  /// range that is skipped travels as it is: its residual becomes zero. `begin_quantizing()` has
  /// the errors of quantize().
  Status begin_quantizing(SimdLevel level = detect_simd_level());
  bool quantize_range(const std::byte* in,
                      const ShardRange& range,
                      Compressor compressor,
                      std::span<std::byte> out,
                      SimdLevel level = detect_simd_level());
  void skip_range(const ShardRange& range);
  /// Adds a range to the energy of that step.
  void measure_range(const std::byte* in, const ShardRange& range);
  /// In that step, for the own part, which is `range` of the shard: quantises the sum of its acc
  /// and of what the others sent of it, `parts`. What rounding takes away of the sum is the own
  /// part's new residual. Returns false where a sum is not finite, which makes the step so. Errors:
  /// kInternal without a pending step.
  Result<bool> quantize_sum(std::span<const std::span<const std::byte>> parts,
                            const ShardRange& range,
                            Compressor compressor,
                            std::span<std::byte> out,
                            SimdLevel level = detect_simd_level());

  void commit() override;
  void rollback() override;
  bool is_pending() const override { return pending_ != Pending::kNone; }

  /// Multiplies residual, velocity and threshold, for gradients whose scale changes from now on.
  /// Errors: kInvalidArgument when `factor` is not finite or not above 0; kInternal while a step is
  /// pending.
  Status scale(double factor);

  Status save(Bytes& out) const override;
  /// What save() wrote, whole. Errors: kInvalidArgument, saying what is wrong: another version, cut
  /// short, damaged (there is a checksum), not this many elements.
  static Result<HostResidual> load(std::span<const std::byte> bytes);

  /// A saved shard, and which elements of the tensor it has.
  struct Part {
    std::span<const std::byte> bytes;
    ShardRange range;
  };
  /// What who has the elements `mine` of a tensor goes on with after those who had saved `parts`:
  /// of each element the sum over the parts that have it, in their order; zero where none has it.
  /// Step count and kind are those of `like`, a saved shard of the same tensor, and the threshold
  /// is found anew. Errors: as load(), and kInvalidArgument where a part is of another kind, step
  /// or length, or a sum is not finite.
  static Result<HostResidual> gather(std::span<const std::byte> like,
                                     std::span<const Part> parts,
                                     const ShardRange& mine);

 private:
  enum class Pending : std::uint8_t { kNone, kFinite, kNonFinite };

  std::size_t lane_bytes() const { return dtype_ == DataType::kFloat64 ? 8 : 4; }
  std::size_t residual_bytes() const { return numel_ * lane_bytes(); }
  /// A step on this state. Makes the velocity where one is needed for the first time.
  detail::TopkStepJob begin(double momentum, SimdLevel level);
  /// All but the elements of `left_out`.
  void measure(const std::byte* shard, const ShardRange& left_out = {});

  DataType dtype_ = DataType::kFloat32;
  std::size_t numel_ = 0;
  std::uint64_t step_ = 0;
  detail::TopkForecast forecast_;
  detail::LanePair residual_;
  detail::LanePair velocity_;  // Exists with momentum correction.

  // The pending step's.
  Pending pending_ = Pending::kNone;
  StepEnergy energy_;
  detail::TopkForecast next_forecast_;
  bool had_velocity_ = false;
  bool next_has_velocity_ = false;
};

}  // namespace lightcc
