// HostResidual::load() against arbitrary bytes, as they are and with a right checksum; what loads
// must save to the same bytes, compress, and cut into shards that have the same residual.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lightcc/base/bytes.hpp"
#include "lightcc/compression/residual/host_residual.hpp"
#include "lightcc/compression/topk/topk_plan.hpp"

#include "saved_state.hpp"

namespace {

using lightcc::Bytes;
using lightcc::HostResidual;
using lightcc::require;

void check_cut(const HostResidual& state, const Bytes& bytes) {
  const std::vector<HostResidual::Part> one = {{bytes, {0, state.numel()}}};
  std::size_t element = 0;
  for (std::size_t j = 0; j < 3; ++j) {
    const auto shard =
        HostResidual::gather(bytes, one, lightcc::shard_range(state.numel(), 3, j, state.dtype()));
    require(shard.ok());
    for (std::size_t i = 0; i < shard->numel(); ++i, ++element) {
      require(shard->residual_at(i) == state.residual_at(element));
      require(shard->velocity_at(i) == state.velocity_at(element));
    }
  }
  require(element == state.numel());
}

void check_step(HostResidual& state) {
  const std::vector<std::byte> shard(state.numel() * lightcc::element_size(state.dtype()));
  const std::size_t k = lightcc::topk_k(state.numel(), 0.25);
  const std::size_t capacity = lightcc::topk_capacity(k, state.numel());
  const lightcc::TopkFormat format{.dtype = state.dtype()};
  Bytes out(lightcc::max_list_bytes(state.numel(), capacity, format));
  const auto outcome = state.compress(shard.data(), {.k = k, .capacity = capacity}, out);
  require(outcome.ok() && !outcome->non_finite && outcome->count <= capacity);
  require(lightcc::parse_list(std::span(out).first(outcome->bytes), state.numel(), format).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const Bytes bytes = lightcc::saved_state(data, size);
  auto state = HostResidual::load(bytes);
  if (!state.ok()) {
    return 0;
  }
  lightcc::require_same_bytes(*state, bytes);
  check_cut(*state, bytes);
  check_step(*state);
  return 0;
}
