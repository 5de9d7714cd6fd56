// Proof of the job secret at the start of every connection, sans I/O.
//
// Three flights, all of fixed shape, so that not one byte of anything else is parsed before the
// proof:
//   server -> client  magic, version, 32-byte server nonce
//   client -> server  magic, version, 32-byte client nonce, u16 length, hello bytes, HMAC-SHA256
//   server -> client  HMAC-SHA256, or 32 zero bytes: "your proof is wrong"
// The client's MAC covers "client", both nonces and the hello; the server's covers "server", both
// nonces and the hello (so a MAC can be neither replayed nor reflected). Byte table:
// docs/inside/wire-format.md. Payload after the handshake is not encrypted: the secret keeps
// strangers out, it does not hide tensors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"

namespace lightcc {

inline constexpr std::size_t kMaxHelloBytes = 512;
using Nonce = std::array<std::byte, 32>;

/// From the kernel's generator. kSystem where the sandbox forbids even that.
Result<Nonce> make_nonce();

/// Feed what arrives; send what is in `out`, also when feed() failed (then it tells the client
/// why). Both ends stop consuming exactly at the handshake's end. After a failure every feed()
/// fails.
class ServerHandshake {
 public:
  ServerHandshake(std::string secret, const Nonce& nonce);
  /// What to send first.
  Bytes greeting() const;
  /// Consumes from the front of `in`; returns bytes consumed. Appends what to send to `out`.
  /// kPeerFailed: not lightcc, another version, or a wrong secret (the text says which).
  Result<std::size_t> feed(std::span<const std::byte> in, Bytes& out);
  /// Reading this many bytes from the socket cannot take any of the payload; 0 when done().
  std::size_t wanted() const;
  bool done() const { return done_; }
  /// What the client said of itself. Valid when done().
  const Bytes& hello() const { return hello_; }

 private:
  Status check(Bytes& out);

  std::string secret_;
  Nonce nonce_;
  Bytes buffer_;
  Bytes hello_;
  bool done_ = false;
  bool failed_ = false;
};

class ClientHandshake {
 public:
  ClientHandshake(std::string secret, const Nonce& nonce, Bytes hello);
  /// As the server's. kInvalidArgument: the hello is longer than kMaxHelloBytes.
  Result<std::size_t> feed(std::span<const std::byte> in, Bytes& out);
  std::size_t wanted() const;
  bool done() const { return done_; }

 private:
  Status check(Bytes& out);

  std::string secret_;
  Nonce nonce_;
  Bytes hello_;
  Bytes buffer_;
  Nonce server_nonce_{};
  bool greeted_ = false;
  bool done_ = false;
  bool failed_ = false;
};

}  // namespace lightcc
