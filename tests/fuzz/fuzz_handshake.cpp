// Both ends of the handshake against arbitrary bytes, in one piece and one byte at a time.
//
// First byte: which end (even: server, odd: client); the rest is what the peer sends. Nonces and
// secret are fixed, so the corpus can hold flights that are accepted.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "lightcc/base/bytes.hpp"
#include "lightcc/wire/handshake.hpp"

namespace {

using lightcc::Bytes;
using lightcc::Nonce;

Nonce counting_from(unsigned first) {
  Nonce nonce{};
  for (std::size_t i = 0; i < nonce.size(); ++i) {
    nonce[i] = static_cast<std::byte>(first + i);
  }
  return nonce;
}

void require(bool claim) {
  if (!claim) {
    __builtin_trap();
  }
}

struct Outcome {
  bool ok = true;
  bool done = false;
  std::size_t consumed = 0;
  Bytes out;
  bool operator==(const Outcome&) const = default;
};

template <typename Handshake>
Outcome run(Handshake handshake, std::span<const std::byte> in, std::size_t piece_bytes) {
  Outcome outcome;
  while (!in.empty() && outcome.ok && !handshake.done()) {
    const auto piece = in.first(std::min(in.size(), piece_bytes));
    const auto fed = handshake.feed(piece, outcome.out);
    outcome.ok = fed.ok();
    if (fed.ok()) {
      require(fed.value() <= piece.size());
      require(handshake.done() || fed.value() == piece.size());
      outcome.consumed += fed.value();
    }
    in = in.subspan(piece.size());
  }
  outcome.done = handshake.done();
  if (!outcome.ok) {
    outcome.consumed = 0;  // How much was read before a failure depends on the pieces.
    require(!outcome.done);
  }
  require(!outcome.done || handshake.wanted() == 0);
  return outcome;
}

template <typename Handshake>
void check(const Handshake& handshake, std::span<const std::byte> in) {
  const Outcome whole = run(handshake, in, in.size());
  require(whole == run(handshake, in, 1));
  require(whole.out.size() <= 2 * lightcc::kMaxHelloBytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const auto in = std::as_bytes(std::span(data, size)).subspan(1);
  const std::string secret = "job secret";
  if (data[0] % 2 == 0) {
    check(lightcc::ServerHandshake(secret, counting_from(0)), in);
  } else {
    const auto hello = lightcc::as_bytes("rank 3");
    check(lightcc::ClientHandshake(secret, counting_from(0x80), Bytes(hello.begin(), hello.end())),
          in);
  }
  return 0;
}
