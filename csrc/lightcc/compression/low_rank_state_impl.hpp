// What a LowRankState is made of.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lightcc/compression/kernels/low_rank_tile.hpp"
#include "lightcc/compression/low_rank_state.hpp"

namespace lightcc {
namespace detail {

/// A zeroed array, aligned for any vector.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  explicit AlignedBytes(std::size_t count) : count_(count), lines_(count / kLineBytes + 1) {}

  std::byte* data() { return lines_.front().bytes.data(); }
  const std::byte* data() const { return lines_.front().bytes.data(); }
  std::span<const std::byte> bytes() const { return {data(), count_}; }

 private:
  static constexpr std::size_t kLineBytes = kLowRankAlignment;
  struct alignas(kLineBytes) Line {
    std::array<std::byte, kLineBytes> bytes;
  };

  std::size_t count_ = 0;
  std::vector<Line> lines_;
};

}  // namespace detail

struct LowRankState::Impl {
  enum class Pending : std::uint8_t { kNone, kProjected, kCollected };

  std::size_t vectors() const { return low_rank_vectors(matrix, rank); }
  std::size_t lane_bytes() const { return dtype == DataType::kFloat64 ? 8 : 4; }
  std::size_t residual_bytes() const { return matrix.rows * matrix.cols * lane_bytes(); }
  std::size_t basis_bytes() const { return vectors() * matrix.cols * lane_bytes(); }
  /// Of vectors in padded arrays.
  std::size_t stride_bytes() const {
    return (matrix.cols * lane_bytes() + kLowRankAlignment - 1) / kLowRankAlignment *
           kLowRankAlignment;
  }
  /// A basis that follows from dtype, matrix and rank.
  void make_basis();
  /// Appends what save() does, with these.
  void write(std::uint64_t at_step,
             const detail::AlignedBytes& kept,
             const detail::AlignedBytes& with_basis,
             Bytes& out) const;

  DataType dtype = DataType::kFloat32;
  MatrixShape matrix;
  std::size_t rank = 0;
  LowRankKernels kernels;
  std::uint64_t step = 0;
  detail::AlignedBytes residual;
  detail::AlignedBytes basis;  ///< One vector after another.

  Pending pending = Pending::kNone;
  const std::byte* input = nullptr;
  double prescale = 1.0;
  detail::AlignedBytes own_right;  ///< Padded; the own share of the pending step.
  StepEnergy energy;

  bool keeps_other = false;
  std::optional<std::uint64_t> other_step;  ///< Nothing: the others hold no state.
  detail::AlignedBytes other_residual;
  detail::AlignedBytes other_basis;
};

}  // namespace lightcc
