// Saved states: docs/inside/wire-format.md has the byte table.
#include "lightcc/compression/residual/saved_shard.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include "lightcc/base/sha256.hpp"
#include "lightcc/compression/kernels/float_types.hpp"
#include "lightcc/compression/residual/host_residual.hpp"
#include "lightcc/compression/residual/shard.hpp"

namespace lightcc {
namespace {

constexpr std::string_view kMagic = "lcctopk";
constexpr std::string_view kPowerSgdMagic = "lcclowr";  // Older releases wrote it.
constexpr std::uint8_t kVersion = 1;
constexpr std::size_t kHeaderBytes = 50;
constexpr std::size_t kChecksumBytes = std::tuple_size_v<Sha256Digest>;

bool begins_with(std::span<const std::byte> bytes, std::string_view magic) {
  return bytes.size() >= magic.size() &&
         std::ranges::equal(bytes.first(magic.size()), as_bytes(magic));
}

Status check_frame(std::span<const std::byte> bytes) {
  if (begins_with(bytes, kPowerSgdMagic)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a saved state of PowerSGD, which lightcc no longer has: compress by int4 or "
                      "top-k, or use torch's powerSGD_hook");
  }
  if (bytes.size() < kHeaderBytes + kChecksumBytes) {
    return make_error(
        ErrorCode::kInvalidArgument, "a saved top-k state of %zu bytes is cut short", bytes.size());
  }
  if (!begins_with(bytes, kMagic)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "what should be a saved top-k state does not begin as one");
  }
  const auto version = std::to_integer<unsigned>(bytes[kMagic.size()]);
  if (version != kVersion) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a saved top-k state of version %u, this lightcc reads version %u",
                      version,
                      unsigned{kVersion});
  }
  if (!std::ranges::equal(sha256(bytes.first(bytes.size() - kChecksumBytes)),
                          bytes.last(kChecksumBytes))) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a saved top-k state of %zu bytes is damaged: its checksum does not match",
                      bytes.size());
  }
  return {};
}

template <typename Lane>
bool all_finite(std::span<const std::byte> lanes) {
  bool finite = true;
  for (std::size_t at = 0; at < lanes.size(); at += sizeof(Lane)) {
    finite = finite && std::isfinite(detail::load_as<Lane>(lanes.data() + at));
  }
  return finite;
}

bool is_magnitude(double value) {
  return value >= 0.0 && std::isfinite(value);
}

}  // namespace

Result<SavedShard> parse_saved_shard(std::span<const std::byte> bytes) {
  LIGHTCC_RETURN_IF_ERROR(check_frame(bytes));
  ByteReader reader(bytes.first(bytes.size() - kChecksumBytes));
  reader.raw(kMagic.size() + sizeof(kVersion));
  SavedShard saved;
  const auto dtype = reader.number<std::uint8_t>();
  saved.dtype = static_cast<DataType>(dtype);
  if (!is_floating_point(saved.dtype)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a saved top-k state of element type %u, which is not floating point",
                      unsigned{dtype});
  }
  const auto has_velocity = reader.number<std::uint8_t>();
  const auto numel = reader.number<std::uint64_t>();
  saved.step = reader.number<std::uint64_t>();
  saved.forecast.threshold = reader.number<double>();
  saved.forecast.ideal = reader.number<double>();
  saved.forecast.k = reader.number<std::uint64_t>();
  if (has_velocity > 1 || !is_magnitude(saved.forecast.threshold) ||
      !is_magnitude(saved.forecast.ideal)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a saved top-k state whose header is out of range");
  }
  saved.has_velocity = has_velocity == 1;
  const std::size_t lane_bytes = saved.dtype == DataType::kFloat64 ? sizeof(double) : sizeof(float);
  const std::size_t bytes_per_elem = lane_bytes * (saved.has_velocity ? 2 : 1);
  if (reader.remaining() / bytes_per_elem != numel || reader.remaining() % bytes_per_elem != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a saved top-k state says %llu elements and has %zu bytes for them",
                      static_cast<unsigned long long>(numel),
                      reader.remaining());
  }
  saved.numel = static_cast<std::size_t>(numel);
  saved.residual = reader.raw(saved.numel * lane_bytes);
  saved.velocity = reader.raw(saved.has_velocity ? saved.numel * lane_bytes : 0);
  const auto finite = saved.dtype == DataType::kFloat64 ? all_finite<double> : all_finite<float>;
  if (!finite(saved.residual) || !finite(saved.velocity)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a saved top-k state with values that are not finite");
  }
  return saved;
}

void write_saved_shard(const SavedShard& saved, Bytes& out) {
  const std::size_t begin = out.size();
  ByteWriter writer(out);
  writer.raw(as_bytes(kMagic));
  writer.number(kVersion);
  writer.number(static_cast<std::uint8_t>(saved.dtype));
  writer.number(static_cast<std::uint8_t>(saved.has_velocity ? 1 : 0));
  writer.number(static_cast<std::uint64_t>(saved.numel));
  writer.number(saved.step);
  writer.number(saved.forecast.threshold);
  writer.number(saved.forecast.ideal);
  writer.number(saved.forecast.k);
  writer.raw(saved.residual);
  writer.raw(saved.velocity);
  writer.raw(sha256(std::span(out).subspan(begin)));
}

namespace {

void copy(std::byte* to, std::span<const std::byte> from) {
  if (!from.empty()) {
    std::memcpy(to, from.data(), from.size());
  }
}

template <typename Lane>
void add_shard_lanes(std::byte* to, std::span<const std::byte> from) {
  for (std::size_t at = 0; at < from.size(); at += sizeof(Lane)) {
    detail::store_as<Lane>(
        to + at, detail::load_as<Lane>(to + at) + detail::load_as<Lane>(from.data() + at));
  }
}

/// Errors unless `part` continues the same error feedback as `first`.
Status check_same(std::size_t i, const SavedShard& part, const SavedShard& first) {
  if (part.dtype != first.dtype || part.step != first.step ||
      part.has_velocity != first.has_velocity) {
    return make_error(ErrorCode::kInvalidArgument,
                      "saved top-k shard %zu is %s of step %llu, shard 0 is %s of step %llu",
                      i,
                      data_type_name(part.dtype),
                      static_cast<unsigned long long>(part.step),
                      data_type_name(first.dtype),
                      static_cast<unsigned long long>(first.step));
  }
  return {};
}

Status check_length(std::size_t i, std::size_t count, const SavedShard& part, std::size_t numel) {
  if (part.numel != numel) {
    return make_error(ErrorCode::kInvalidArgument,
                      "saved top-k shard %zu of %zu has %zu elements, where %zu are expected",
                      i,
                      count,
                      part.numel,
                      numel);
  }
  return {};
}

}  // namespace

Status HostResidual::save(Bytes& out) const {
  if (is_pending()) {
    return make_error(ErrorCode::kInternal,
                      "saving a top-k state while a step is neither committed nor rolled back");
  }
  write_saved_shard({.dtype = dtype_,
                     .numel = numel_,
                     .step = step_,
                     .forecast = forecast_,
                     .residual = residual_.bytes(),
                     .velocity = velocity_.bytes(),
                     .has_velocity = has_velocity()},
                    out);
  return {};
}

Result<HostResidual> HostResidual::load(std::span<const std::byte> bytes) {
  LIGHTCC_ASSIGN_OR_RETURN(const SavedShard saved, parse_saved_shard(bytes));
  HostResidual state(saved.dtype, saved.numel);
  state.step_ = saved.step;
  state.forecast_ = saved.forecast;
  copy(state.residual_.current(), saved.residual);
  if (saved.has_velocity) {
    state.velocity_ = detail::LanePair(state.residual_bytes());
    copy(state.velocity_.current(), saved.velocity);
  }
  return state;
}

Result<HostResidual> HostResidual::gather(std::span<const std::byte> like,
                                          std::span<const Part> parts,
                                          const ShardRange& mine) {
  LIGHTCC_ASSIGN_OR_RETURN(const SavedShard first, parse_saved_shard(like));
  HostResidual state(first.dtype, mine.size_elems());
  state.step_ = first.step;
  if (first.has_velocity) {
    state.velocity_ = detail::LanePair(state.residual_bytes());
  }
  const bool is_wide = first.dtype == DataType::kFloat64;
  const auto add = is_wide ? add_shard_lanes<double> : add_shard_lanes<float>;
  const std::size_t lane_bytes = state.lane_bytes();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const ShardRange& range = parts[i].range;
    LIGHTCC_ASSIGN_OR_RETURN(const SavedShard part, parse_saved_shard(parts[i].bytes));
    LIGHTCC_RETURN_IF_ERROR(check_same(i, part, first));
    LIGHTCC_RETURN_IF_ERROR(check_length(i, parts.size(), part, range.size_elems()));
    const std::size_t from = std::max(range.begin, mine.begin);
    const std::size_t to = std::min(range.end, mine.end);
    if (from < to) {
      const std::size_t at = (from - mine.begin) * lane_bytes;
      const std::size_t skipped = (from - range.begin) * lane_bytes;
      const std::size_t taken = (to - from) * lane_bytes;
      add(state.residual_.current() + at, part.residual.subspan(skipped, taken));
      if (part.has_velocity) {
        add(state.velocity_.current() + at, part.velocity.subspan(skipped, taken));
      }
    }
  }
  const auto finite = is_wide ? all_finite<double> : all_finite<float>;
  if (!finite(state.residual_.bytes()) || !finite(state.velocity_.bytes())) {
    return make_error(ErrorCode::kInvalidArgument, "the sum of saved top-k shards is not finite");
  }
  return state;
}

}  // namespace lightcc
