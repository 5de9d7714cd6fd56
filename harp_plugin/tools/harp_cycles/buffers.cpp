#include "buffers.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "base/bytes.hpp"
#include "base/prefetch.hpp"
#include "base/rng.hpp"

namespace harp_cycles {
namespace {

constexpr std::uint64_t kWholeEvery = 64;

}  // namespace

Buffers::Buffers(const Shape& shape)
    : message_bytes_(shape.message_bytes()),
      sources_(shape.sources),
      destinations_(shape.destinations),
      source_bytes_(sources_ * message_bytes_),
      destination_bytes_(destinations_ * message_bytes_) {
  harp::Rng rng(sources_);
  for (std::byte& byte : source_bytes_) {
    byte = static_cast<std::byte>(rng());
  }
}

std::span<const std::byte> Buffers::source(std::uint64_t message) const {
  return std::span(source_bytes_).subspan(message % sources_ * message_bytes_, message_bytes_);
}

std::span<std::byte> Buffers::destination(std::uint64_t message) {
  return std::span(destination_bytes_)
      .subspan(message % destinations_ * message_bytes_, message_bytes_);
}

std::span<std::byte> Buffers::prepare(std::uint64_t message) {
  const auto to = destination(message);
  const auto from = source(message);
  to.front() = ~from.front();
  to.back() = ~from.back();
  return to;
}

void Buffers::absorb(std::span<const std::byte> bytes) {
  if (absorbed_at_ + bytes.size() > destination_bytes_.size()) {
    absorbed_at_ = 0;
  }
  const auto to = std::span(destination_bytes_).subspan(absorbed_at_, bytes.size());
  harp::prefetch_next<harp::PrefetchTo::kWrite>(to);  // As the stack does.
  harp::copy_bytes(bytes, to);
  absorbed_at_ += bytes.size();
}

void Buffers::check(std::uint64_t message) {
  const auto to = destination(message);
  const auto from = source(message);
  const bool is_whole = message < destinations_ || message % kWholeEvery == 0;
  const bool is_right = is_whole ? std::ranges::equal(to, from)
                                 : to.front() == from.front() && to.back() == from.back();
  if (!is_right) {
    throw std::runtime_error("message " + std::to_string(message) + " arrived wrong");
  }
  ++checked_;
}

}  // namespace harp_cycles
