// Low-rank compression of one tensor (Vogels, Karimireddy, Jaggi: "PowerSGD", NeurIPS 2019), and
// what one member remembers of it: what was not sent yet (error feedback), and a basis.
//
// With members i, matrices G_i of n rows and k columns, r vectors, and the basis B (k x r) that all
// members share, a step is
//
//   M_i = prescale * G_i + e_i
//   P   = sum of M_i B                        the first all-reduce: r n elements
//   L   = P, its columns made orthonormal
//   R_i = M_i^T L
//   R   = sum of R_i                          the second all-reduce: r k elements
//   out = postscale * L R^T
//   e_i = M_i - L R_i^T                       what was not sent of the own matrix
//   B   = R, its columns made orthonormal
//
// So what all sent together is L R^T, and that and what all keep back is what all had: the rounding
// of the sums aside, whatever L is. A member keeps back what is outside of L of its own matrix
// alone. The paper's members subtract the mean of all; their errors have the same sum, and their
// differences besides.
//
// B of one step is where the next one begins (warm start): steps together are a power iteration.
// Where B has no direction left, as after a gradient of zeros, random ones that all members draw
// alike take its place. Columns of P that are sums of others become zeros, and send nothing.
//
// A value that is no number, or beyond 2^100 (2^900 of float64), makes a step void: project() says
// so by NaN in P, which the all-reduce brings to all. Nothing changes before finish(), so a void
// step leaves what was remembered.
//
// M is made anew in each of three passes, so that e needs no second array. Where a failure may
// leave ranks on both sides of a step, keep_other() has one all the same: what was before the last
// step is copied there. All results have the same bits at every SIMD level.
//
// Thread: one at a time. Blocks: no.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/compression/low_rank_shape.hpp"
#include "lightcc/compression/step_energy.hpp"

namespace lightcc {

inline constexpr std::size_t kMaxLowRank = 64;

class LowRankState {
 public:
  /// Nothing kept back, and a basis that follows from the arguments. `rank`: 1 .. kMaxLowRank; a
  /// small matrix has fewer vectors. Takes 4 bytes per element, 8 of float64. std::bad_alloc may be
  /// thrown, as by any container.
  LowRankState(DataType dtype,
               const MatrixShape& matrix,
               std::size_t rank,
               SimdLevel simd = detect_simd_level());
  LowRankState(LowRankState&&) noexcept;
  LowRankState& operator=(LowRankState&&) noexcept;
  LowRankState(const LowRankState&) = delete;
  LowRankState& operator=(const LowRankState&) = delete;
  ~LowRankState();

  DataType dtype() const;
  const MatrixShape& matrix() const;
  std::size_t numel() const { return matrix().rows * matrix().cols; }
  std::size_t rank() const;  ///< As asked for.
  /// Of both factors.
  std::size_t vectors() const { return low_rank_vectors(matrix(), rank()); }
  /// What factors are computed in, and travel in: float32, or float64 for float64.
  DataType lane_dtype() const;
  std::size_t left_elems() const { return vectors() * matrix().rows; }
  std::size_t right_elems() const { return vectors() * matrix().cols; }
  /// Committed steps.
  std::uint64_t step() const;
  /// Of the step that was finished last.
  StepEnergy energy() const;
  /// Element `i` of what is kept back, or of the basis, whose vectors lie one after another.
  double residual_at(std::size_t i) const;
  double basis_at(std::size_t i) const;

  /// Another rank: what is kept back stays, the basis is made anew. kInternal: a step is pending.
  Status set_rank(std::size_t rank);

  // A step: the four in order, or rollback(). `in` has numel elements of `dtype`, any alignment;
  // null: zeros. It stays as it is until finish().

  /// Writes the own share of P, `left_elems` lanes, its columns one after another. kInternal: a
  /// step is pending.
  Status project(const std::byte* in, double prescale, std::byte* left);
  /// Makes the sum of all members' P orthonormal in place; false: the step is void.
  bool orthonormalise(std::byte* left) const;
  /// Writes the own share of R, `right_elems` lanes.
  Status collect(const std::byte* left, std::byte* right);
  /// Writes `numel` elements of `dtype` to `out`, which may be `in`; null: they are not wanted.
  /// False: the step is void, and nothing has changed.
  Result<bool> finish(const std::byte* left,
                      const std::byte* right_sum,
                      double postscale,
                      std::byte* out);
  /// Forgets the pending step: the state is what it was before. Nothing without one.
  void rollback();
  bool is_pending() const;

  /// Multiplies what is kept back, for gradients whose scale changes from now on. Errors:
  /// kInvalidArgument when `factor` is not finite or not above 0; kInternal while a step is
  /// pending.
  Status scale(double factor);

  /// Appends the state to `out`: everything that later results depend on, bit for bit. kInternal: a
  /// step is pending. Byte table: docs/wire-format.md.
  Status save(Bytes& out) const;
  /// From now on keeps what is before each step, in as much memory again: for save_other().
  /// std::bad_alloc may be thrown.
  void keep_other();
  /// step() of what is kept of before the last step. Nothing before the first step since
  /// keep_other(), and after load(), scale() or another rank.
  std::optional<std::uint64_t> other_step() const;
  /// save() of that. Errors: kInternal where there is none.
  Status save_other(Bytes& out) const;
  /// Whether bytes begin as what save() writes.
  static bool is_saved(std::span<const std::byte> bytes);
  /// What save() wrote, whole. kInvalidArgument says what is wrong with it.
  static Result<LowRankState> load(std::span<const std::byte> bytes,
                                   SimdLevel simd = detect_simd_level());
  /// What member `j` of `n` goes on with after the members whose states were `saved`, in order:
  /// member i takes what members i, i + n, i + 2 n, ... had kept back, so that the sum stays.
  /// Errors: as load(), and kInvalidArgument where the states are not those of one tensor at one
  /// step.
  static Result<LowRankState> reshard(std::span<const std::span<const std::byte>> saved,
                                      std::size_t n,
                                      std::size_t j);
  /// What a member goes on with after members whose states were `parts`: the sum of what they had
  /// kept back, in their order. Basis and step count are those of `like`, another one's state of
  /// the same step. Errors: as reshard(), and kInvalidArgument where the sum is not finite.
  static Result<LowRankState> gather(std::span<const std::byte> like,
                                     std::span<const std::span<const std::byte>> parts);

 private:
  /// Whether the other one continues the same training of the same tensor.
  bool goes_with(const LowRankState& other) const;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lightcc
