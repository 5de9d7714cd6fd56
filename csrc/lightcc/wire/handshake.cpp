#include "lightcc/wire/handshake.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "lightcc/base/sha256.hpp"

namespace lightcc {
namespace {

constexpr std::string_view kMagic = "lightcc";
constexpr std::uint8_t kVersion = 1;
constexpr std::size_t kPrefixBytes = kMagic.size() + sizeof(kVersion);
constexpr std::size_t kNonceBytes = std::tuple_size_v<Nonce>;
constexpr std::size_t kProofBytes = std::tuple_size_v<Sha256Digest>;
constexpr std::size_t kGreetingBytes = kPrefixBytes + kNonceBytes;
constexpr std::size_t kClientHeaderBytes = kGreetingBytes + sizeof(std::uint16_t);
constexpr Sha256Digest kRefusal{};
static_assert(kGreetingBytes == 40 && kClientHeaderBytes == 42 && kProofBytes == 32);
static_assert(kMaxHelloBytes <= UINT16_MAX);

Sha256Digest make_proof(const std::string& secret,
                        std::string_view role,
                        const Nonce& server_nonce,
                        const Nonce& client_nonce,
                        std::span<const std::byte> hello) {
  HmacSha256 mac(as_bytes(secret));
  mac.update(as_bytes(role));
  mac.update(server_nonce);
  mac.update(client_nonce);
  mac.update(hello);
  return mac.finish();
}

void write_prefix(ByteWriter& writer) {
  writer.raw(as_bytes(kMagic));
  writer.number(kVersion);
}

// Looks at as much of the prefix as is there, so that a stranger is refused at its first wrong
// byte.
Status check_prefix(std::span<const std::byte> bytes) {
  const auto magic = as_bytes(kMagic);
  const std::size_t count = std::min(bytes.size(), magic.size());
  if (!std::ranges::equal(bytes.first(count), magic.first(count))) {
    return make_error(ErrorCode::kPeerFailed, "the other end does not speak lightcc's protocol");
  }
  if (bytes.size() >= kPrefixBytes) {
    const auto version = std::to_integer<unsigned>(bytes[magic.size()]);
    if (version != kVersion) {
      return make_error(
          ErrorCode::kPeerFailed,
          "the other end speaks version %u of lightcc's protocol, this end version %u",
          version,
          unsigned{kVersion});
    }
  }
  return {};
}

Nonce read_nonce(ByteReader& reader) {
  Nonce nonce{};
  const auto bytes = reader.raw(nonce.size());
  std::ranges::copy(bytes, nonce.begin());
  return nonce;
}

// Moves as much as belongs to the handshake from `in` to `buffer`; check() after each step, since
// what is wanted may depend on what has come.
template <typename Handshake, typename Check>
Result<std::size_t> take(const Handshake& handshake,
                         std::span<const std::byte> in,
                         Bytes& buffer,
                         const Check& check) {
  std::size_t consumed = 0;
  while (consumed < in.size() && !handshake.done()) {
    const std::size_t count = std::min(handshake.wanted(), in.size() - consumed);
    const auto piece = in.subspan(consumed, count);
    buffer.insert(buffer.end(), piece.begin(), piece.end());
    consumed += count;
    LIGHTCC_RETURN_IF_ERROR(check());
  }
  return consumed;
}

Status failed_before() {
  return make_error(ErrorCode::kPeerFailed, "the handshake has failed before");
}

}  // namespace

Result<Nonce> make_nonce() {
  Nonce nonce{};
  std::size_t filled = 0;
  while (filled < nonce.size()) {
    const ssize_t count = ::getrandom(nonce.data() + filled, nonce.size() - filled, 0);
    if (count > 0) {
      filled += static_cast<std::size_t>(count);
    } else if (errno != EINTR) {
      return make_system_error(ErrorCode::kSystem, errno, "no random bytes from the kernel");
    }
  }
  return nonce;
}

ServerHandshake::ServerHandshake(std::string secret, const Nonce& nonce)
    : secret_(std::move(secret)), nonce_(nonce) {}

Bytes ServerHandshake::greeting() const {
  Bytes out;
  ByteWriter writer(out);
  write_prefix(writer);
  writer.raw(nonce_);
  return out;
}

std::size_t ServerHandshake::wanted() const {
  if (done_) {
    return 0;
  }
  if (buffer_.size() < kClientHeaderBytes) {
    return kClientHeaderBytes - buffer_.size();
  }
  ByteReader length{std::span(buffer_).subspan(kGreetingBytes)};
  return kClientHeaderBytes + length.number<std::uint16_t>() + kProofBytes - buffer_.size();
}

Result<std::size_t> ServerHandshake::feed(std::span<const std::byte> in, Bytes& out) {
  if (failed_) {
    return failed_before();
  }
  auto consumed = take(*this, in, buffer_, [&] { return check(out); });
  failed_ = !consumed.ok();
  return consumed;
}

Status ServerHandshake::check(Bytes& out) {
  LIGHTCC_RETURN_IF_ERROR(check_prefix(buffer_));
  if (buffer_.size() < kClientHeaderBytes) {
    return {};
  }
  ByteReader reader(buffer_);
  reader.raw(kPrefixBytes);
  const Nonce client_nonce = read_nonce(reader);
  const std::size_t hello_bytes = reader.number<std::uint16_t>();
  if (hello_bytes > kMaxHelloBytes) {
    return make_error(ErrorCode::kPeerFailed,
                      "a hello of %zu bytes, more than the %zu allowed",
                      hello_bytes,
                      kMaxHelloBytes);
  }
  if (reader.remaining() < hello_bytes + kProofBytes) {
    return {};
  }
  const auto hello = reader.raw(hello_bytes);
  const auto proof = reader.raw(kProofBytes);
  if (!equal_constant_time(proof, make_proof(secret_, "client", nonce_, client_nonce, hello))) {
    ByteWriter(out).raw(kRefusal);
    return make_error(ErrorCode::kPeerFailed, "the client does not know the job secret");
  }
  hello_.assign(hello.begin(), hello.end());
  ByteWriter(out).raw(make_proof(secret_, "server", nonce_, client_nonce, hello));
  buffer_.clear();
  done_ = true;
  return {};
}

ClientHandshake::ClientHandshake(std::string secret, const Nonce& nonce, Bytes hello)
    : secret_(std::move(secret)), nonce_(nonce), hello_(std::move(hello)) {}

std::size_t ClientHandshake::wanted() const {
  if (done_) {
    return 0;
  }
  return (greeted_ ? kProofBytes : kGreetingBytes) - buffer_.size();
}

Result<std::size_t> ClientHandshake::feed(std::span<const std::byte> in, Bytes& out) {
  if (failed_) {
    return failed_before();
  }
  if (hello_.size() > kMaxHelloBytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a hello of %zu bytes, more than the %zu allowed",
                      hello_.size(),
                      kMaxHelloBytes);
  }
  auto consumed = take(*this, in, buffer_, [&] { return check(out); });
  failed_ = !consumed.ok();
  return consumed;
}

Status ClientHandshake::check(Bytes& out) {
  if (!greeted_) {
    LIGHTCC_RETURN_IF_ERROR(check_prefix(buffer_));
    if (buffer_.size() < kGreetingBytes) {
      return {};
    }
    ByteReader reader(buffer_);
    reader.raw(kPrefixBytes);
    server_nonce_ = read_nonce(reader);
    ByteWriter writer(out);
    write_prefix(writer);
    writer.raw(nonce_);
    writer.number(static_cast<std::uint16_t>(hello_.size()));
    writer.raw(hello_);
    writer.raw(make_proof(secret_, "client", server_nonce_, nonce_, hello_));
    buffer_.clear();
    greeted_ = true;
    return {};
  }
  if (buffer_.size() < kProofBytes) {
    return {};
  }
  if (std::ranges::equal(buffer_, kRefusal)) {
    return make_error(ErrorCode::kPeerFailed, "the server refused this end's job secret");
  }
  if (!equal_constant_time(buffer_, make_proof(secret_, "server", server_nonce_, nonce_, hello_))) {
    return make_error(ErrorCode::kPeerFailed, "the server does not know the job secret");
  }
  buffer_.clear();
  done_ = true;
  return {};
}

}  // namespace lightcc
