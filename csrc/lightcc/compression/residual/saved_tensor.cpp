#include "lightcc/compression/residual/saved_tensor.hpp"

#include <cmath>

#include "lightcc/compression/residual/shard.hpp"

namespace lightcc {
namespace {

constexpr std::uint8_t kSavedVersion = 3;
constexpr std::uint8_t kSavedOfShards = 2;  // All are.
constexpr std::uint8_t kSavedWithoutFactor = 1;

}  // namespace

Status bad_saved_tensor(const char* what) {
  return make_error(ErrorCode::kInvalidArgument, "saved compression state %s", what);
}

Bytes write_saved_tensor(const SavedTensor& saved) {
  Bytes bytes;
  ByteWriter out(bytes);
  out.number(kSavedVersion);
  out.number(static_cast<std::uint8_t>(saved.of));
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
  if (version < kSavedWithoutFactor || version > kSavedVersion || !in.ok()) {
    return bad_saved_tensor("is of another version of lightcc");
  }
  SavedTensor saved;
  const std::uint8_t of = version > kSavedOfShards ? in.number<std::uint8_t>() : std::uint8_t{0};
  const auto dtype = in.number<std::uint8_t>();
  saved.elements = static_cast<std::size_t>(in.varint());
  saved.position.blocks = static_cast<std::size_t>(in.varint());
  saved.position.block = static_cast<std::size_t>(in.varint());
  saved.position.members = static_cast<std::size_t>(in.varint());
  saved.position.member = static_cast<std::size_t>(in.varint());
  saved.steps = in.varint();
  saved.factor = version > kSavedWithoutFactor ? in.number<double>() : 0.0;
  saved.state = in.raw(in.remaining());
  const GridPosition& position = saved.position;
  if (!in.ok() || of > static_cast<std::uint8_t>(ResidualOf::kScatteredRows) ||
      dtype >= kDataTypeCount || !is_floating_point(static_cast<DataType>(dtype)) ||
      position.block >= position.blocks || position.member >= position.members ||
      position.members > kMaxMembers) {
    return bad_saved_tensor("is damaged");
  }
  saved.of = static_cast<ResidualOf>(of);
  saved.dtype = static_cast<DataType>(dtype);
  return saved;
}

std::size_t residual_elements(ResidualOf of,
                              std::size_t elements,
                              const GridPosition& position,
                              DataType dtype) {
  if (of == ResidualOf::kScatteredRows) {
    return (position.blocks - 1) * (elements / (position.blocks * position.members));
  }
  return shard_range(elements, position.members, position.member, dtype).size_elems();
}

std::optional<double> factor_change(double from, double to) {
  const double change = from / to;
  return from != to && std::isfinite(change) && change > 0.0 ? std::optional(change) : std::nullopt;
}

}  // namespace lightcc
