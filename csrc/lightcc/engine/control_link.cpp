#include "lightcc/engine/control_link.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace lightcc {
namespace {

constexpr std::size_t kReadBytes = std::size_t{16} << 10;

class RingStream final : public ByteStream {
 public:
  RingStream(ByteRingReader incoming, ByteRingWriter outgoing, Doorbell peer)
      : incoming_(incoming), outgoing_(outgoing), peer_(peer) {}

  Result<std::size_t> read_some(std::span<std::byte> into) override {
    LIGHTCC_ASSIGN_OR_RETURN(const std::size_t count, incoming_.try_read(into));
    if (count > 0) {
      peer_.ring();
    }
    return count;
  }
  Result<std::size_t> write_some(std::span<const std::byte> bytes) override {
    return outgoing_.try_write(bytes);
  }
  void wake_peer(bool urgent) override { urgent ? peer_.call() : peer_.ring(); }
  void finish_writing() override {}
  int fd() const override { return -1; }

 private:
  ByteRingReader incoming_;
  ByteRingWriter outgoing_;
  Doorbell peer_;
};

class SocketStream final : public ByteStream {
 public:
  explicit SocketStream(UniqueFd fd) : fd_(std::move(fd)) {}

  Result<std::size_t> read_some(std::span<std::byte> into) override {
    const ssize_t count = ::recv(fd_.get(), into.data(), into.size(), MSG_DONTWAIT);
    if (count > 0) {
      return static_cast<std::size_t>(count);
    }
    if (count == 0) {
      return make_error(ErrorCode::kPeerFailed, "closed its control connection");
    }
    return would_block() ? Result<std::size_t>(0) : failed("reading from");
  }
  Result<std::size_t> write_some(std::span<const std::byte> bytes) override {
    const ssize_t count =
        ::send(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count >= 0) {
      return static_cast<std::size_t>(count);
    }
    return would_block() ? Result<std::size_t>(0) : failed("writing to");
  }
  void wake_peer(bool /*urgent*/) override {}  // The kernel does.
  void finish_writing() override { (void)::shutdown(fd_.get(), SHUT_WR); }
  int fd() const override { return fd_.get(); }

 private:
  static bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }
  static Status failed(const char* doing) {
    return make_system_error(
        ErrorCode::kPeerFailed, errno, "%s its control connection failed", doing);
  }

  UniqueFd fd_;
};

}  // namespace

std::unique_ptr<ByteStream> make_ring_stream(ByteRingReader incoming,
                                             ByteRingWriter outgoing,
                                             Doorbell peer) {
  return std::make_unique<RingStream>(incoming, outgoing, peer);
}

std::unique_ptr<ByteStream> make_socket_stream(UniqueFd fd) {
  return std::make_unique<SocketStream>(std::move(fd));
}

ControlLink::ControlLink(std::unique_ptr<ByteStream> stream, int peer_rank)
    : stream_(std::move(stream)), peer_rank_(peer_rank) {}

Status ControlLink::send(const Frame& frame, bool urgent) {
  encode_frame(frame, backlog_);
  urgent_ = urgent_ || urgent;
  return flush().status();
}

Status ControlLink::send_encoded(std::span<const std::byte> frame, bool urgent) {
  backlog_.insert(backlog_.end(), frame.begin(), frame.end());
  urgent_ = urgent_ || urgent;
  return flush().status();
}

Result<bool> ControlLink::flush() {
  bool moved = false;
  while (has_backlog()) {
    auto count = stream_->write_some(std::span(backlog_).subspan(sent_));
    if (!count.ok()) {
      return Status(ErrorCode::kPeerFailed,
                    "rank " + std::to_string(peer_rank_) + " " + count.status().message(),
                    peer_rank_);
    }
    if (*count == 0) {
      return moved;
    }
    sent_ += *count;
    moved = true;
    stream_->wake_peer(urgent_);
  }
  backlog_.clear();
  sent_ = 0;
  urgent_ = false;
  return moved;
}

Result<std::optional<Frame>> ControlLink::receive() {
  while (true) {
    LIGHTCC_ASSIGN_OR_RETURN(std::optional<Frame> frame, parse_one());
    if (frame.has_value()) {
      return frame;
    }
    if (std::exchange(is_drained_, false)) {
      return std::optional<Frame>();
    }
    std::array<std::byte, kReadBytes> buffer;  // NOLINT: filled by the read
    auto count = stream_->read_some(buffer);
    if (!count.ok()) {
      return Status(ErrorCode::kPeerFailed,
                    "rank " + std::to_string(peer_rank_) + " " + count.status().message(),
                    peer_rank_);
    }
    if (*count == 0) {
      return std::optional<Frame>();
    }
    is_drained_ = fd() >= 0 && *count < buffer.size();
    inbox_.insert(
        inbox_.end(), buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(*count));
  }
}

Result<std::optional<Frame>> ControlLink::parse_one() {
  const std::span<const std::byte> rest = std::span(inbox_).subspan(parsed_);
  std::uint32_t length = 0;
  if (rest.size() < sizeof(length)) {
    drop_parsed();
    return std::optional<Frame>();
  }
  std::memcpy(&length, rest.data(), sizeof(length));
  if (length > kMaxFrameBytes) {
    return Status(ErrorCode::kPeerFailed,
                  "rank " + std::to_string(peer_rank_) + " announced a control frame of " +
                      std::to_string(length) + " bytes; the limit is " +
                      std::to_string(kMaxFrameBytes),
                  peer_rank_);
  }
  if (rest.size() - sizeof(length) < length) {
    drop_parsed();
    return std::optional<Frame>();
  }
  auto frame = decode_frame(rest.subspan(sizeof(length), length));
  if (!frame.ok()) {
    return Status(ErrorCode::kPeerFailed,
                  "rank " + std::to_string(peer_rank_) + ": " + frame.status().message(),
                  peer_rank_);
  }
  parsed_ += sizeof(length) + length;
  return std::optional<Frame>(std::move(frame).value());
}

void ControlLink::drop_parsed() {
  inbox_.erase(inbox_.begin(), inbox_.begin() + static_cast<std::ptrdiff_t>(parsed_));
  parsed_ = 0;
}

}  // namespace lightcc
