#include "lightcc/compression/low_rank_state.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "lightcc/collectives/kernels/float_mode.hpp"
#include "lightcc/compression/float_types.hpp"
#include "lightcc/compression/low_rank_state_impl.hpp"
#include "lightcc/compression/orthonormal.hpp"

namespace lightcc {
namespace {

using detail::AlignedBytes;

Status out_of_turn(const char* what) {
  return make_error(ErrorCode::kInternal, "%s of a low-rank step out of turn", what);
}

/// Calls with a float or a double: what is computed in.
template <typename Function>
decltype(auto) with_lane(DataType dtype, const Function& function) {
  return dtype == DataType::kFloat64 ? function(double{}) : function(float{});
}

template <typename T>
std::span<T> lanes_of(std::byte* bytes, std::size_t count) {
  return {reinterpret_cast<T*>(bytes), count};
}

template <typename T>
bool is_finite(const T* lanes, std::size_t count) {
  T sum{0};
  for (std::size_t i = 0; i < count; ++i) {
    sum += lanes[i] * T{0};  // NaN once a lane is no number.
  }
  return sum == T{0};
}

/// Vectors one after another, to or from an array in which each begins at a multiple of `stride`.
void copy_vectors(std::byte* to,
                  std::size_t to_stride,
                  const std::byte* from,
                  std::size_t from_stride,
                  std::size_t count,
                  std::size_t bytes) {
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_stride, from + i * from_stride, bytes);
  }
}

/// A matrix cut into tiles, row by row. Elements that are no lanes go through a tile of lanes.
template <typename Type>
class Tiles {
 public:
  using Lane = Type::Lane;
  using Wire = Type::Wire;

  Tiles(const MatrixShape& matrix, const std::byte* input, LowRankTile whole)
      : matrix_(matrix), input_(input), whole_(whole) {
    whole_.wide = std::is_same_v<Lane, double>;
    whole_.residual_stride = matrix.cols;
    whole_.input_stride = Type::kRounds ? kLowRankTileCols : matrix.cols;
    whole_.out_stride = whole_.input_stride;
    if (Type::kRounds) {
      in_.resize(kLowRankTileRows * kLowRankTileCols);
      out_.resize(whole.out == nullptr ? 0 : in_.size());
    }
  }

  /// `run` gets one tile after another.
  template <typename Run>
  void for_each(const Run& run) {
    for (std::size_t row = 0; row < matrix_.rows; row += kLowRankTileRows) {
      for (std::size_t col = 0; col < matrix_.cols; col += kLowRankTileCols) {
        const LowRankTile tile = tile_at(row, col);
        run(tile);
        if (Type::kRounds && whole_.out != nullptr) {
          encode(tile, whole_.out + (row * matrix_.cols + col) * sizeof(Wire));
        }
      }
    }
  }

 private:
  LowRankTile tile_at(std::size_t row, std::size_t col) {
    LowRankTile tile = whole_;
    const std::size_t at = row * matrix_.cols + col;
    tile.rows = std::min(kLowRankTileRows, matrix_.rows - row);
    tile.cols = std::min(kLowRankTileCols, matrix_.cols - col);
    tile.residual += at * sizeof(Lane);
    tile.left += row * sizeof(Lane);
    tile.right += col * sizeof(Lane);
    tile.right_sum += tile.right_sum == nullptr ? 0 : col * sizeof(Lane);
    if (!Type::kRounds) {
      tile.input = input_ == nullptr ? nullptr : input_ + at * sizeof(Lane);
      tile.out += tile.out == nullptr ? 0 : at * sizeof(Lane);
      return tile;
    }
    if (input_ != nullptr) {
      decode(tile, input_ + at * sizeof(Wire));
      tile.input = reinterpret_cast<const std::byte*>(in_.data());
    }
    tile.out = out_.empty() ? nullptr : reinterpret_cast<std::byte*>(out_.data());
    return tile;
  }

  void decode(const LowRankTile& tile, const std::byte* from) {
    for (std::size_t row = 0; row < tile.rows; ++row) {
      Lane* const lanes = in_.data() + row * kLowRankTileCols;
      const std::byte* const wire = from + row * matrix_.cols * sizeof(Wire);
      for (std::size_t i = 0; i < tile.cols; ++i) {
        lanes[i] = Type::decode(detail::load_as<Wire>(wire + i * sizeof(Wire)));
      }
    }
  }

  void encode(const LowRankTile& tile, std::byte* to) const {
    for (std::size_t row = 0; row < tile.rows; ++row) {
      const Lane* const lanes = out_.data() + row * kLowRankTileCols;
      std::byte* const wire = to + row * matrix_.cols * sizeof(Wire);
      for (std::size_t i = 0; i < tile.cols; ++i) {
        detail::store_as<Wire>(wire + i * sizeof(Wire), Type::encode(lanes[i]));
      }
    }
  }

  MatrixShape matrix_;
  const std::byte* input_;
  LowRankTile whole_;
  std::vector<Lane> in_;
  std::vector<Lane> out_;
};

template <typename Run>
void for_each_tile(DataType dtype,
                   const MatrixShape& matrix,
                   const std::byte* input,
                   const LowRankTile& whole,
                   const Run& run) {
  const IeeeFloatMode mode;
  detail::with_float_type(
      dtype, [&](auto type) { Tiles<decltype(type)>(matrix, input, whole).for_each(run); });
}

}  // namespace

void LowRankState::Impl::make_basis() {
  const IeeeFloatMode mode;
  basis = AlignedBytes(basis_bytes());
  with_lane(dtype, [&](auto lane) {
    using Lane = decltype(lane);
    const std::size_t count = vectors();
    // Zeros, in whose place come random vectors.
    make_orthonormal_and_fill(
        lanes_of<Lane>(basis.data(), count * matrix.cols), count, matrix.cols, 0);
  });
}

LowRankState::LowRankState(DataType dtype,
                           const MatrixShape& matrix,
                           std::size_t rank,
                           SimdLevel simd)
    : impl_(std::make_unique<Impl>()) {
  impl_->dtype = dtype;
  impl_->matrix = matrix;
  impl_->rank = rank;
  impl_->kernels = low_rank_kernels(simd);
  impl_->residual = AlignedBytes(impl_->residual_bytes());
  impl_->make_basis();
}

LowRankState::LowRankState(LowRankState&&) noexcept = default;
LowRankState& LowRankState::operator=(LowRankState&&) noexcept = default;
LowRankState::~LowRankState() = default;

DataType LowRankState::dtype() const {
  return impl_->dtype;
}
const MatrixShape& LowRankState::matrix() const {
  return impl_->matrix;
}
std::size_t LowRankState::rank() const {
  return impl_->rank;
}
DataType LowRankState::lane_dtype() const {
  return impl_->dtype == DataType::kFloat64 ? DataType::kFloat64 : DataType::kFloat32;
}
std::uint64_t LowRankState::step() const {
  return impl_->step;
}
StepEnergy LowRankState::energy() const {
  return impl_->energy;
}
void LowRankState::keep_other() {
  if (!impl_->keeps_other) {
    impl_->other_residual = AlignedBytes(impl_->residual_bytes());
    impl_->keeps_other = true;
  }
}
std::optional<std::uint64_t> LowRankState::other_step() const {
  return impl_->other_step;
}
bool LowRankState::is_pending() const {
  return impl_->pending != Impl::Pending::kNone;
}

namespace {

double lane_at(DataType dtype, const AlignedBytes& lanes, std::size_t i) {
  return with_lane(dtype, [&](auto lane) -> double {
    return detail::load_as<decltype(lane)>(lanes.data() + i * sizeof(lane));
  });
}

}  // namespace

double LowRankState::residual_at(std::size_t i) const {
  return lane_at(impl_->dtype, impl_->residual, i);
}
double LowRankState::basis_at(std::size_t i) const {
  return lane_at(impl_->dtype, impl_->basis, i);
}

Status LowRankState::set_rank(std::size_t rank) {
  if (is_pending()) {
    return out_of_turn("a change");
  }
  if (rank != impl_->rank) {
    impl_->other_step.reset();
    impl_->rank = rank;
    impl_->make_basis();
  }
  return {};
}

// --- A step -------------------------------------------------------------------------------------

Status LowRankState::project(const std::byte* in, double prescale, std::byte* left) {
  if (is_pending()) {
    return out_of_turn("the first part");
  }
  Impl& impl = *impl_;
  impl.pending = Impl::Pending::kProjected;
  impl.input = in;
  impl.prescale = prescale;
  const std::size_t stride = impl.stride_bytes();
  AlignedBytes padded(impl.vectors() * stride);
  copy_vectors(padded.data(),
               stride,
               impl.basis.data(),
               impl.matrix.cols * impl.lane_bytes(),
               impl.vectors(),
               impl.matrix.cols * impl.lane_bytes());
  std::memset(left, 0, left_elems() * impl.lane_bytes());
  bool is_good = true;
  const LowRankTile whole{.residual = impl.residual.data(),
                          .scale = prescale,
                          .rank = impl.vectors(),
                          .left = left,
                          .left_stride = impl.matrix.rows,
                          .right = padded.data(),
                          .right_stride = stride / impl.lane_bytes()};
  for_each_tile(impl.dtype, impl.matrix, in, whole, [&](const LowRankTile& tile) {
    is_good = impl.kernels.project(tile) && is_good;
  });
  if (!is_good) {
    with_lane(impl.dtype,
              [&](auto lane) { detail::store_as(left, detail::one_nan<decltype(lane)>()); });
  }
  return {};
}

bool LowRankState::orthonormalise(std::byte* left) const {
  const IeeeFloatMode mode;
  return with_lane(impl_->dtype, [&](auto lane) {
    const std::span lanes = lanes_of<decltype(lane)>(left, left_elems());
    if (!is_finite(lanes.data(), lanes.size())) {
      return false;
    }
    make_orthonormal(lanes, vectors(), impl_->matrix.rows);
    return true;
  });
}

Status LowRankState::collect(const std::byte* left, std::byte* right) {
  Impl& impl = *impl_;
  if (impl.pending != Impl::Pending::kProjected) {
    return out_of_turn("the second part");
  }
  impl.pending = Impl::Pending::kCollected;
  const std::size_t stride = impl.stride_bytes();
  impl.own_right = AlignedBytes(impl.vectors() * stride);
  const LowRankTile whole{.residual = impl.residual.data(),
                          .scale = impl.prescale,
                          .rank = impl.vectors(),
                          .left = const_cast<std::byte*>(left),  // NOLINT: collect() reads it.
                          .left_stride = impl.matrix.rows,
                          .right = impl.own_right.data(),
                          .right_stride = stride / impl.lane_bytes()};
  for_each_tile(impl.dtype, impl.matrix, impl.input, whole, [&](const LowRankTile& tile) {
    impl.kernels.collect(tile);
  });
  const std::size_t bytes = impl.matrix.cols * impl.lane_bytes();
  copy_vectors(right, bytes, impl.own_right.data(), stride, impl.vectors(), bytes);
  return {};
}

Result<bool> LowRankState::finish(const std::byte* left,
                                  const std::byte* right_sum,
                                  double postscale,
                                  std::byte* out) {
  Impl& impl = *impl_;
  if (impl.pending != Impl::Pending::kCollected) {
    return out_of_turn("the end");
  }
  const std::size_t count = right_elems();
  const bool is_good = with_lane(impl.dtype, [&](auto lane) {
    using Lane = decltype(lane);
    return is_finite(reinterpret_cast<const Lane*>(right_sum), count);
  });
  if (!is_good) {
    rollback();
    return false;
  }
  const std::size_t stride = impl.stride_bytes();
  const std::size_t bytes = impl.matrix.cols * impl.lane_bytes();
  AlignedBytes sum(impl.vectors() * stride);
  copy_vectors(sum.data(), stride, right_sum, bytes, impl.vectors(), bytes);
  if (impl.keeps_other) {
    impl.other_residual = impl.residual;
    impl.other_basis = impl.basis;
    impl.other_step = impl.step;
  }
  const std::byte* const residual = impl.residual.data();
  const double scale = impl.prescale;
  const double came_in =
      measure_energy(impl.dtype, impl.input, residual, numel(), impl.step).input * scale * scale;
  const LowRankTile whole{.residual = impl.residual.data(),
                          .scale = scale,
                          .rank = impl.vectors(),
                          .left = const_cast<std::byte*>(left),  // NOLINT: split() reads it.
                          .left_stride = impl.matrix.rows,
                          .right = impl.own_right.data(),
                          .right_stride = stride / impl.lane_bytes(),
                          .right_sum = sum.data(),
                          .out = out,
                          .postscale = postscale};
  for_each_tile(impl.dtype, impl.matrix, impl.input, whole, [&](const LowRankTile& tile) {
    impl.kernels.split(tile);
  });
  impl.energy = {.input = came_in,
                 .kept = measure_energy(impl.dtype, nullptr, residual, numel(), impl.step).kept};
  ++impl.step;
  std::memcpy(impl.basis.data(), right_sum, count * impl.lane_bytes());
  const IeeeFloatMode mode;
  with_lane(impl.dtype, [&](auto lane) {
    make_orthonormal_and_fill(lanes_of<decltype(lane)>(impl.basis.data(), count),
                              impl.vectors(),
                              impl.matrix.cols,
                              impl.step);
  });
  rollback();
  return true;
}

void LowRankState::rollback() {
  impl_->pending = Impl::Pending::kNone;
  impl_->input = nullptr;
  impl_->own_right = AlignedBytes();
}

Status LowRankState::scale(double factor) {
  if (!std::isfinite(factor) || factor <= 0.0) {
    return make_error(
        ErrorCode::kInvalidArgument, "a low-rank state cannot be scaled by %g", factor);
  }
  if (is_pending()) {
    return out_of_turn("scaling");
  }
  impl_->other_step.reset();
  const IeeeFloatMode mode;
  with_lane(impl_->dtype, [&](auto lane) {
    using Lane = decltype(lane);
    for (Lane& kept : lanes_of<Lane>(impl_->residual.data(), numel())) {
      kept = static_cast<Lane>(static_cast<double>(kept) * factor);
    }
  });
  impl_->energy.input *= factor * factor;
  impl_->energy.kept *= factor * factor;
  return {};
}

}  // namespace lightcc
