#include "lightcc/transport/channel/recv_machine.hpp"

namespace lightcc {
namespace {

unsigned long long printable(std::uint64_t value) {
  return value;
}

}  // namespace

RecvMachine::~RecvMachine() {
  if (on_destroyed_) {
    on_destroyed_();
  }
}

bool RecvMachine::lacks(const ChannelHello& hello) const {
  if (is_over()) {
    return false;
  }
  if (sender_.count == 0) {
    return true;
  }
  return hello.attempt == sender_.attempt && hello.count == sender_.count &&
         hello.piece_bytes == sender_.piece_bytes && ((heard_ >> hello.index) & 1U) == 0;
}

void RecvMachine::take_hello(const ChannelHello& hello, const Cut& cut) {
  if (sender_.count == 0) {
    sender_ = hello;
    missing_ = hello.count;
    cut_ = cut;
  }
  heard_ |= 1U << hello.index;
  --missing_;
}

Result<RequestId> RecvMachine::irecv(std::span<std::byte> into) {
  return post({.into = into, .total = into.size()});
}

Result<RequestId> RecvMachine::irecv_fragments(std::size_t bytes) {
  return post({.total = bytes, .fragments = true});
}

Result<RequestId> RecvMachine::irecv_to_sink(std::size_t bytes, const FragmentSink& sink) {
  if (!can_receive_to_sink()) {
    return RecvChannel::irecv_to_sink(bytes, sink);
  }
  return post({.total = bytes, .sink = sink});
}

Result<RequestId> RecvMachine::post(Posted posted) {
  if (is_over()) {
    return queue_.error();
  }
  const RequestId request = queue_.push(std::move(posted));
  on_post();
  if (is_over() && !queue_.is_done(request)) {
    return queue_.error();
  }
  return request;
}

Result<bool> RecvMachine::test(RequestId request) {
  if (const Posted* posted = queue_.find(request); posted != nullptr && posted->pieces_left == 0) {
    return true;  // Ahead of one that was posted earlier.
  }
  return queue_.test(request, "a receive that was never posted");
}

void RecvMachine::cancel() {
  fail(make_error(ErrorCode::kShutDown, "the channel from rank %u was cancelled", peer_));
  queue_.forget_done();
}

void RecvMachine::fail(const Status& why) {
  close();
  queue_.fail(blame(why, peer_));
}

// hot
const RecvMachine::Posted* RecvMachine::begin_piece(RequestId message,
                                                    std::uint64_t offset,
                                                    std::uint64_t total) {
  if (message >= queue_.end()) {
    return nullptr;
  }
  Posted* const posted = queue_.find(message);
  if (posted != nullptr && total != posted->total) {
    fail(make_error(ErrorCode::kPeerFailed,
                    "rank %u sent message %llu of %llu bytes where %llu were expected",
                    peer_,
                    printable(message),
                    printable(total),
                    printable(posted->total)));
    return nullptr;
  }
  if (posted != nullptr && posted->pieces_left == kUncounted) {
    posted->pieces_left = cut_.count(total);
    posted->begun = PieceSet(posted->pieces_left);
  }
  const std::uint64_t index = offset == 0 ? 0 : offset / cut_.piece_bytes;
  if (posted == nullptr || !posted->begun.insert(index)) {
    fail(make_error(ErrorCode::kPeerFailed,
                    "rank %u sent byte %llu of message %llu twice",
                    peer_,
                    printable(offset),
                    printable(message)));
    return nullptr;
  }
  return posted;
}

Result<std::optional<Fragment>> RecvMachine::next_fragment(RequestId request) {
  if (queue_.is_done(request)) {
    return std::optional<Fragment>();
  }
  if (is_over()) {
    return queue_.error();
  }
  const Posted* posted = queue_.find(request);
  if (posted == nullptr || !posted->fragments || lent_) {
    return make_error(ErrorCode::kInvalidArgument,
                      lent_ ? "next_fragment() before release() of the last one"
                            : "next_fragment() of a request that irecv_fragments() did not make");
  }
  Fragment fragment;
  if (lend(request, &fragment)) {
    lent_ = fragment.bytes;
    return std::optional(fragment);
  }
  if (is_over() && !queue_.is_done(request)) {
    return queue_.error();
  }
  return std::optional<Fragment>();
}

void RecvMachine::release(const Fragment& fragment) {
  if (!lent_) {
    return;
  }
  const std::span<const std::byte> lent = *std::exchange(lent_, std::nullopt);
  if (is_over()) {
    return;
  }
  if (fragment.bytes.data() != lent.data() || fragment.bytes.size() != lent.size()) {
    fail(make_error(ErrorCode::kInvalidArgument, "release() of something else than the fragment"));
    return;
  }
  take_back(lent.size());
}

}  // namespace lightcc
