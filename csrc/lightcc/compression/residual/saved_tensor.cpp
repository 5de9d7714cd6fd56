#include "lightcc/compression/residual/saved_tensor.hpp"

#include <cmath>

namespace lightcc {
namespace {

constexpr std::uint8_t kSavedVersion = 2;
constexpr std::uint8_t kSavedWithoutFactor = 1;

}  // namespace

Status bad_saved_tensor(const char* what) {
  return make_error(ErrorCode::kInvalidArgument, "saved compression state %s", what);
}

Bytes write_saved_tensor(const SavedTensor& saved) {
  Bytes bytes;
  ByteWriter out(bytes);
  out.number(kSavedVersion);
  out.number(static_cast<std::uint8_t>(saved.dtype));
  out.varint(saved.elements);
  out.varint(saved.position.blocks);
  out.varint(saved.position.block);
  out.varint(saved.position.members);
  out.varint(saved.position.member);
  out.varint(saved.steps);
  out.number(saved.factor);
  out.raw(saved.state);
  return bytes;
}

Result<SavedTensor> parse_saved_tensor(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  const auto version = in.number<std::uint8_t>();
  if ((version != kSavedVersion && version != kSavedWithoutFactor) || !in.ok()) {
    return bad_saved_tensor("is of another version of lightcc");
  }
  SavedTensor saved;
  const auto dtype = in.number<std::uint8_t>();
  saved.elements = static_cast<std::size_t>(in.varint());
  saved.position.blocks = static_cast<std::size_t>(in.varint());
  saved.position.block = static_cast<std::size_t>(in.varint());
  saved.position.members = static_cast<std::size_t>(in.varint());
  saved.position.member = static_cast<std::size_t>(in.varint());
  saved.steps = in.varint();
  saved.factor = version == kSavedVersion ? in.number<double>() : 0.0;
  saved.state = in.raw(in.remaining());
  const GridPosition& position = saved.position;
  if (!in.ok() || dtype >= kDataTypeCount || !is_floating_point(static_cast<DataType>(dtype)) ||
      position.block >= position.blocks || position.member >= position.members ||
      position.members > kMaxMembers) {
    return bad_saved_tensor("is damaged");
  }
  saved.dtype = static_cast<DataType>(dtype);
  return saved;
}

std::optional<double> factor_change(double from, double to) {
  const double change = from / to;
  return from != to && std::isfinite(change) && change > 0.0 ? std::optional(change) : std::nullopt;
}

}  // namespace lightcc
