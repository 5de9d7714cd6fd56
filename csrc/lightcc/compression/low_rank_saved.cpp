// Saved low-rank states: docs/wire-format.md has the byte table.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <vector>

#include "lightcc/base/sha256.hpp"
#include "lightcc/compression/float_types.hpp"
#include "lightcc/compression/low_rank_state.hpp"
#include "lightcc/compression/low_rank_state_impl.hpp"

namespace lightcc {
namespace {

constexpr std::string_view kLowRankMagic = "lcclowr";
constexpr std::uint8_t kLowRankVersion = 1;
constexpr std::size_t kLowRankHeaderBytes = 37;
constexpr std::size_t kLowRankChecksumBytes = std::tuple_size_v<Sha256Digest>;

Status refused_state(const char* what) {
  return make_error(ErrorCode::kInvalidArgument, "a saved low-rank state %s", what);
}

template <typename Lane>
bool lanes_are_finite(std::span<const std::byte> lanes) {
  for (std::size_t at = 0; at < lanes.size(); at += sizeof(Lane)) {
    if (!std::isfinite(detail::load_as<Lane>(lanes.data() + at))) {
      return false;
    }
  }
  return true;
}

Status check_low_rank_frame(std::span<const std::byte> bytes) {
  if (!LowRankState::is_saved(bytes)) {
    return refused_state("does not begin as one");
  }
  if (bytes.size() < kLowRankHeaderBytes + kLowRankChecksumBytes) {
    return refused_state("is cut short");
  }
  if (std::to_integer<std::uint8_t>(bytes[kLowRankMagic.size()]) != kLowRankVersion) {
    return refused_state("is of another version of lightcc");
  }
  if (!std::ranges::equal(sha256(bytes.first(bytes.size() - kLowRankChecksumBytes)),
                          bytes.last(kLowRankChecksumBytes))) {
    return refused_state("is damaged: its checksum does not match");
  }
  return {};
}

template <typename Lane>
void add_lanes(std::byte* to, const std::byte* from, std::size_t count) {
  for (std::size_t i = 0; i < count * sizeof(Lane); i += sizeof(Lane)) {
    detail::store_as<Lane>(to + i, detail::load_as<Lane>(to + i) + detail::load_as<Lane>(from + i));
  }
}

}  // namespace

bool LowRankState::is_saved(std::span<const std::byte> bytes) {
  return bytes.size() >= kLowRankMagic.size() &&
         std::ranges::equal(bytes.first(kLowRankMagic.size()), as_bytes(kLowRankMagic));
}

Status LowRankState::save(Bytes& out) const {
  if (is_pending()) {
    return make_error(ErrorCode::kInternal, "saving a low-rank state while a step is pending");
  }
  impl_->write(impl_->step, impl_->residual, impl_->basis, out);
  return {};
}

Status LowRankState::save_other(Bytes& out) const {
  if (!impl_->other_step) {
    return make_error(ErrorCode::kInternal, "a low-rank state has no other one beside it");
  }
  impl_->write(*impl_->other_step, impl_->other_residual, impl_->other_basis, out);
  return {};
}

void LowRankState::Impl::write(std::uint64_t at_step,
                               const detail::AlignedBytes& kept,
                               const detail::AlignedBytes& with_basis,
                               Bytes& out) const {
  const std::size_t begin = out.size();
  ByteWriter writer(out);
  writer.raw(as_bytes(kLowRankMagic));
  writer.number(kLowRankVersion);
  writer.number(static_cast<std::uint8_t>(dtype));
  writer.number(static_cast<std::uint32_t>(rank));
  writer.number(static_cast<std::uint64_t>(matrix.rows));
  writer.number(static_cast<std::uint64_t>(matrix.cols));
  writer.number(at_step);
  writer.raw(kept.bytes());
  writer.raw(with_basis.bytes());
  writer.raw(sha256(std::span(out).subspan(begin)));
}

Result<LowRankState> LowRankState::load(std::span<const std::byte> bytes, SimdLevel simd) {
  LIGHTCC_RETURN_IF_ERROR(check_low_rank_frame(bytes));
  ByteReader reader(bytes.first(bytes.size() - kLowRankChecksumBytes));
  reader.raw(kLowRankMagic.size() + sizeof(kLowRankVersion));
  const auto dtype = static_cast<DataType>(reader.number<std::uint8_t>());
  const auto rank = reader.number<std::uint32_t>();
  const auto rows = reader.number<std::uint64_t>();
  const auto cols = reader.number<std::uint64_t>();
  const auto step = reader.number<std::uint64_t>();
  if (!is_floating_point(dtype) || rank == 0 || rank > kMaxLowRank || rows == 0 || cols == 0) {
    return refused_state("has a header that is out of range");
  }
  const std::size_t lane_bytes = dtype == DataType::kFloat64 ? sizeof(double) : sizeof(float);
  const std::size_t lanes = reader.remaining() / lane_bytes;
  const std::uint64_t vectors = std::min({std::uint64_t{rank}, rows, cols});
  // No product overflows where both numbers are among the lanes.
  if (rows > lanes || cols > lanes / rows || rows * cols + vectors * cols != lanes ||
      reader.remaining() % lane_bytes != 0) {
    return refused_state("says another number of elements than it has bytes for");
  }
  const std::span<const std::byte> residual = reader.raw(rows * cols * lane_bytes);
  const std::span<const std::byte> basis = reader.raw(vectors * cols * lane_bytes);
  const auto finite =
      lane_bytes == sizeof(double) ? lanes_are_finite<double> : lanes_are_finite<float>;
  if (!finite(residual) || !finite(basis)) {
    return refused_state("has values that are not finite");
  }
  LowRankState state(dtype, {.rows = rows, .cols = cols}, rank, simd);
  std::memcpy(state.impl_->residual.data(), residual.data(), residual.size());
  std::memcpy(state.impl_->basis.data(), basis.data(), basis.size());
  state.impl_->step = step;
  return state;
}

Result<LowRankState> LowRankState::reshard(std::span<const std::span<const std::byte>> saved,
                                           std::size_t n,
                                           std::size_t j) {
  if (saved.empty() || j >= n) {
    return refused_state("is needed of every member");
  }
  LIGHTCC_ASSIGN_OR_RETURN(LowRankState result, load(saved.front()));
  std::vector<LowRankState> others;
  for (std::size_t i = 1; i < saved.size(); ++i) {
    LIGHTCC_ASSIGN_OR_RETURN(LowRankState other, load(saved[i]));
    if (!other.goes_with(result)) {
      return refused_state("is not of the same tensor, step and basis as the others");
    }
    others.push_back(std::move(other));
  }
  detail::AlignedBytes kept(result.impl_->residual_bytes());
  for (std::size_t i = j; i < saved.size(); i += n) {
    const Impl& part = i == 0 ? *result.impl_ : *others[i - 1].impl_;
    const auto add = part.lane_bytes() == sizeof(double) ? add_lanes<double> : add_lanes<float>;
    add(kept.data(), part.residual.data(), result.numel());
  }
  result.impl_->residual = std::move(kept);
  return result;
}

bool LowRankState::goes_with(const LowRankState& other) const {
  return other.dtype() == dtype() && other.matrix() == matrix() && other.rank() == rank() &&
         other.step() == step() &&
         std::ranges::equal(other.impl_->basis.bytes(), impl_->basis.bytes());
}

Result<LowRankState> LowRankState::gather(std::span<const std::byte> like,
                                          std::span<const std::span<const std::byte>> parts) {
  LIGHTCC_ASSIGN_OR_RETURN(LowRankState result, load(like));
  detail::AlignedBytes kept(result.impl_->residual_bytes());
  const bool is_wide = result.impl_->lane_bytes() == sizeof(double);
  const auto add = is_wide ? add_lanes<double> : add_lanes<float>;
  for (const auto& bytes : parts) {
    LIGHTCC_ASSIGN_OR_RETURN(const LowRankState part, load(bytes));
    if (!part.goes_with(result)) {
      return refused_state("is not of the same tensor, step and basis as the others");
    }
    add(kept.data(), part.impl_->residual.data(), result.numel());
  }
  const auto finite = is_wide ? lanes_are_finite<double> : lanes_are_finite<float>;
  if (!finite(kept.bytes())) {
    return refused_state("has a sum with others that is not finite");
  }
  result.impl_->residual = std::move(kept);
  return result;
}

}  // namespace lightcc
