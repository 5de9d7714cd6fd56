// parse_list() against arbitrary bytes; what it accepts must hold what it promises, survive being
// cut, and merge to the sum of its own entries.
//
// Input: dtype and fp16, or 2 bits; phase (u16), elements (u32, at most 300000), where to cut (two
// u32), then the list, which is packed where it has 2 bits.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "lightcc/base/bytes.hpp"
#include "lightcc/compression/topk/merge.hpp"
#include "lightcc/compression/topk/packed_list.hpp"
#include "lightcc/compression/topk/topk_list.hpp"

namespace {

using lightcc::TopkListView;

constexpr std::size_t kMaxElements = 300000;

void require(bool claim) {
  if (!claim) {
    __builtin_trap();
  }
}

void check_entries(const TopkListView& list) {
  require(list.count <= list.elements);
  require(!list.non_finite || list.count == 0);
  std::size_t entry = 0;
  std::size_t next = 0;
  for (std::size_t block = 0; block < list.num_blocks; ++block) {
    for (std::size_t i = 0; i < list.block_count(block); ++i, ++entry) {
      const std::size_t index = list.index(block, entry);
      require(index >= next && index < list.elements);
      require(std::isfinite(list.value(block, entry)));
      next = index + 1;
    }
  }
  require(entry == list.count);
}

std::vector<std::byte> merged(const TopkListView& list) {
  std::vector<std::byte> out(list.elements * lightcc::element_size(list.format.dtype));
  require(lightcc::merge_lists({&list, 1}, out.data(), list.elements, list.format.dtype, 1.0).ok());
  return out;
}

void check_parts(const TopkListView& list, std::span<const std::size_t> cuts) {
  const std::size_t size = lightcc::element_size(list.format.dtype);
  const std::vector<std::byte> whole = merged(list);
  std::size_t count = 0;
  for (std::size_t p = 0; p + 1 < cuts.size(); ++p) {
    const std::size_t elements = cuts[p + 1] - cuts[p];
    const std::size_t bytes = lightcc::list_range_bytes(list, cuts[p], cuts[p + 1]);
    const auto out = std::make_unique<std::byte[]>(bytes);
    const auto written = lightcc::write_list_range(list, cuts[p], cuts[p + 1], {out.get(), bytes});
    require(written.ok() && *written == bytes);
    const auto part = lightcc::parse_list({out.get(), bytes},
                                          elements,
                                          list.format,
                                          (list.phase + cuts[p]) % lightcc::kTopkBlockElems);
    require(part.ok());
    count += part->count;
    const std::vector<std::byte> dense = merged(*part);
    require(dense.empty() ||
            std::memcmp(dense.data(), whole.data() + cuts[p] * size, dense.size()) == 0);
  }
  require(count == list.count);
}

/// What unpacks may still be no list, but nothing is read or written where it should not be.
void check_packed(std::span<const std::byte> packed,
                  std::size_t elements,
                  const lightcc::TopkFormat& format,
                  std::size_t phase) {
  const auto bytes = lightcc::unpacked_bytes(packed, elements, format, phase);
  if (!bytes.ok()) {
    return;
  }
  const auto out = std::make_unique<std::byte[]>(*bytes);
  lightcc::unpack_list(packed, elements, format, phase, {out.get(), *bytes});
  const auto view = lightcc::parse_list({out.get(), *bytes}, elements, format, phase);
  if (view.ok()) {
    check_entries(*view);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::array kTypes = {lightcc::DataType::kFloat16,
                                 lightcc::DataType::kBfloat16,
                                 lightcc::DataType::kFloat32,
                                 lightcc::DataType::kFloat64};
  lightcc::ByteReader reader(std::as_bytes(std::span(data, size)));
  const auto kind = reader.number<std::uint8_t>();
  const std::size_t phase = reader.number<std::uint16_t>();
  const std::size_t elements = reader.number<std::uint32_t>() % (kMaxElements + 1);
  const std::size_t first = reader.number<std::uint32_t>() % (elements + 1);
  const std::size_t second = reader.number<std::uint32_t>() % (elements + 1);
  if (!reader.ok()) {
    return 0;
  }
  // An allocation of just this size, for AddressSanitizer to watch.
  const auto rest = reader.raw(reader.remaining());
  const auto list = std::make_unique<std::byte[]>(rest.size());
  std::ranges::copy(rest, list.get());
  const lightcc::TopkFormat format{
      .dtype = kTypes[kind % 4], .fp16 = kind >= 4 && kind < 8, .two_bits = kind >= 8};
  if (format.packs()) {
    check_packed({list.get(), rest.size()}, elements, format, phase);
    return 0;
  }
  const auto view = lightcc::parse_list({list.get(), rest.size()}, elements, format, phase);
  if (view.ok()) {
    check_entries(*view);
    const std::array<std::size_t, 4> cuts = {
        0, std::min(first, second), std::max(first, second), elements};
    check_parts(*view, cuts);
  }
  return 0;
}
