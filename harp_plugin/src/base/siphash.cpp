#include "base/siphash.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace harp {
namespace {

std::uint64_t load_word(const std::byte* from, std::size_t bytes = 8) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, bytes);
  return word;
}

struct State {
  std::uint64_t v0;
  std::uint64_t v1;
  std::uint64_t v2;
  std::uint64_t v3;

  explicit State(const Key& key)
      : v0(load_word(key.data()) ^ 0x736f6d6570736575),
        v1(load_word(key.data() + 8) ^ 0x646f72616e646f6d),
        v2(load_word(key.data()) ^ 0x6c7967656e657261),
        v3(load_word(key.data() + 8) ^ 0x7465646279746573) {}

  void round() {
    v0 += v1;
    v1 = std::rotl(v1, 13) ^ v0;
    v0 = std::rotl(v0, 32);
    v2 += v3;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 += v3;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 += v1;
    v1 = std::rotl(v1, 17) ^ v2;
    v2 = std::rotl(v2, 32);
  }
  void absorb(std::uint64_t word) {
    v3 ^= word;
    round();
    round();
    v0 ^= word;
  }
  /// Absorbs the whole words of `bytes` and returns what is left.
  std::span<const std::byte> absorb_words(std::span<const std::byte> bytes) {
    while (bytes.size() >= 8) {
      absorb(load_word(bytes.data()));
      bytes = bytes.subspan(8);
    }
    return bytes;
  }
  std::uint64_t finish() {
    v2 ^= 0xff;
    for (int i = 0; i < 4; ++i) {
      round();
    }
    return v0 ^ v1 ^ v2 ^ v3;
  }
};

}  // namespace

std::uint64_t siphash(const Key& key,
                      std::span<const std::byte> first,
                      std::span<const std::byte> second) {
  State state(key);
  auto rest = state.absorb_words(first);
  if (rest.empty()) {
    rest = state.absorb_words(second);
  }
  const std::uint64_t length = first.size() + second.size();
  std::uint64_t last = length << 56;
  if (!rest.empty()) {
    last |= load_word(rest.data(), rest.size());
  }
  state.absorb(last);
  return state.finish();
}

}  // namespace harp
