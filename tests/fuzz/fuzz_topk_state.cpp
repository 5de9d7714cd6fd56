// TopkState::load() against arbitrary bytes, as they are and with a right checksum; what loads must
// save to the same bytes, compress, and cut into shards that have the same residual.
//
// Input: first byte even: the bytes are loaded as they are; odd: the last 32 are replaced by the
// checksum.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/sha256.hpp"
#include "lightcc/compression/shard.hpp"
#include "lightcc/compression/topk_state.hpp"

namespace {

using lightcc::Bytes;
using lightcc::TopkState;

constexpr std::size_t kChecksumBytes = 32;

void require(bool claim) {
  if (!claim) {
    __builtin_trap();
  }
}

void check_cut(const TopkState& state, const Bytes& bytes) {
  const std::vector<std::span<const std::byte>> one = {bytes};
  std::size_t element = 0;
  for (std::size_t j = 0; j < 3; ++j) {
    const auto shard = TopkState::reshard(one, 3, j);
    require(shard.ok());
    for (std::size_t i = 0; i < shard->numel(); ++i, ++element) {
      require(shard->residual_at(i) == state.residual_at(element));
      require(shard->velocity_at(i) == state.velocity_at(element));
    }
  }
  require(element == state.numel());
}

void check_step(TopkState& state) {
  const std::vector<std::byte> shard(state.numel() * lightcc::element_size(state.dtype()));
  const std::size_t k = lightcc::topk_k(state.numel(), 0.25);
  const std::size_t capacity = lightcc::topk_capacity(k, state.numel());
  const lightcc::TopkFormat format{.dtype = state.dtype()};
  Bytes out(lightcc::max_list_bytes(state.numel(), capacity, format));
  const auto outcome = state.compress(shard.data(), 1.0, {.k = k, .capacity = capacity}, out);
  require(outcome.ok() && !outcome->non_finite && outcome->count <= capacity);
  require(lightcc::parse_list(std::span(out).first(outcome->bytes), state.numel(), format).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const auto rest = std::as_bytes(std::span(data, size)).subspan(1);
  Bytes bytes(rest.begin(), rest.end());
  if (data[0] % 2 != 0 && bytes.size() >= kChecksumBytes) {
    const auto covered = std::span(bytes).first(bytes.size() - kChecksumBytes);
    std::ranges::copy(lightcc::sha256(covered), bytes.end() - kChecksumBytes);
  }
  auto state = TopkState::load(bytes);
  if (!state.ok()) {
    return 0;
  }
  Bytes again;
  require(state->save(again).ok());
  require(again == bytes);
  check_cut(*state, bytes);
  check_step(*state);
  return 0;
}
