#include "lightcc/transport/plugin/plugin_receiver.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace lightcc {
namespace {

// A cookie is the slot of a fragment's piece, or this plus the number of a whole message.
constexpr std::uint64_t kWhole = std::uint64_t{1} << 63;

unsigned long long printable(std::uint64_t value) {
  return value;
}

}  // namespace

PluginRecvChannel::PluginRecvChannel(std::shared_ptr<PluginLoop> loop,
                                     const ChannelId& id,
                                     bool can_take)
    : loop_(std::move(loop)), id_(id), can_take_(can_take) {
  loop_->join(*this);
}

PluginRecvChannel::~PluginRecvChannel() {
  cancel();
  loop_->leave(*this);
  if (on_destroyed_) {
    on_destroyed_();
  }
}

bool PluginRecvChannel::lacks(const PluginHello& hello) const {
  if (queue_.is_over()) {
    return false;
  }
  if (comms_.empty()) {
    return true;
  }
  return hello.attempt == attempt_ && hello.count == comms_.size() &&
         hello.piece_bytes == piece_bytes_ && comms_[hello.index] == nullptr;
}

void PluginRecvChannel::attach(std::unique_ptr<PluginComm> comm, const PluginHello& hello) {
  if (comms_.empty()) {
    comms_.resize(hello.count);
    missing_ = hello.count;
    attempt_ = hello.attempt;
    piece_bytes_ = hello.piece_bytes;
  }
  comm->set_peer(id_.source);
  comms_[hello.index] = std::move(comm);
  --missing_;
}

Result<RequestId> PluginRecvChannel::irecv(std::span<std::byte> into) {
  return post({.into = into, .total = into.size(), .fragments = false, .taker = {}});
}

Result<RequestId> PluginRecvChannel::irecv_fragments(std::size_t bytes) {
  return post({.into = {}, .total = bytes, .fragments = true, .taker = {}});
}

Result<RequestId> PluginRecvChannel::irecv_taken(std::size_t bytes, const FragmentTaker& taker) {
  if (!can_take_) {
    return RecvChannel::irecv_taken(bytes, taker);
  }
  return post({.into = {}, .total = bytes, .fragments = false, .taker = taker});
}

Result<RequestId> PluginRecvChannel::post(Posted posted) {
  if (queue_.is_over()) {
    return queue_.error();
  }
  posted.pieces_left = std::numeric_limits<std::uint64_t>::max();  // Counted when it is cut.
  const RequestId request = queue_.push(posted);
  (void)post_pieces();
  if (queue_.is_over()) {
    return queue_.error();
  }
  loop_->expect_work();
  return request;
}

Result<bool> PluginRecvChannel::test(RequestId request) {
  if (const Posted* posted = queue_.find(request); posted != nullptr && posted->pieces_left == 0) {
    return true;  // Ahead of one that was posted earlier.
  }
  return queue_.test(request, "a receive that was never posted");
}

void PluginRecvChannel::cancel() {
  fail(make_error(ErrorCode::kShutDown, "the channel from rank %u was cancelled", id_.source));
  queue_.forget_done();
}

void PluginRecvChannel::fail(const Status& status) {
  for (auto& comm : comms_) {
    comm.reset();  // The staging stays: the caller may still hold a fragment.
  }
  queue_.fail({status.code(), status.message(), static_cast<int>(id_.source)});
  under_way_ = 0;
}

bool PluginRecvChannel::is_active() const {
  return !queue_.is_over() && missing_ == 0 && (under_way_ > 0 || can_post());
}

bool PluginRecvChannel::can_post() const {
  if (cut_message_ >= queue_.end()) {
    return false;
  }
  const Posted& posted = queue_[cut_message_];
  return !posted.fragments || slots_[next_slot_].state == SlotState::kFree;
}

bool PluginRecvChannel::pump() {
  bool moved = false;
  for (std::size_t i = 0; i < comms_.size() && !queue_.is_over(); ++i) {
    moved = settle(*comms_[i]) || moved;
  }
  return (!queue_.is_over() && post_pieces()) || moved;
}

void PluginRecvChannel::rest() {
  for (const auto& comm : comms_) {
    if (comm != nullptr) {
      comm->rest();
    }
  }
}

// hot
bool PluginRecvChannel::settle(PluginComm& comm) {
  bool moved = false;
  while (!comm.is_idle()) {
    PluginComm::Done done;
    const auto settled = comm.settle_oldest(&done);
    if (!settled.ok()) {
      fail(settled.status());
      return true;
    }
    if (!*settled) {
      break;
    }
    moved = true;
    --under_way_;
    loop_->count_received(done.bytes);
    take_piece(done);
    if (queue_.is_over()) {
      return true;
    }
  }
  return moved;
}

void PluginRecvChannel::take_piece(const PluginComm::Done& done) {
  const bool is_whole = (done.cookie & kWhole) != 0;
  const RequestId message =
      is_whole ? done.cookie - kWhole : slots_[static_cast<std::size_t>(done.cookie)].message;
  if (done.bytes != done.expected) {
    fail(make_error(ErrorCode::kPeerFailed,
                    "rank %u sent a piece of %zu bytes in message %llu, where one of %zu was "
                    "expected",
                    id_.source,
                    done.bytes,
                    printable(message),
                    done.expected));
    return;
  }
  if (is_whole || done.expected == 0) {
    if (!is_whole) {
      slots_[static_cast<std::size_t>(done.cookie)].state = SlotState::kFree;
    }
    finish_piece(message);
  } else {
    slots_[static_cast<std::size_t>(done.cookie)].state = SlotState::kArrived;
  }
}

void PluginRecvChannel::finish_piece(RequestId message) {
  if (queue_.finish_piece(message)) {
    for (const auto& comm : comms_) {
      comm->forget_idle();
    }
  }
}

// hot
bool PluginRecvChannel::post_pieces() {
  bool moved = false;
  while (missing_ == 0 && can_post() && !comms_[turn_]->is_full()) {
    Posted& posted = queue_[cut_message_];
    if (cut_offset_ == 0) {
      posted.pieces_left = piece_count(posted.total, piece_bytes_);
    }
    const std::size_t bytes = std::min(piece_bytes_, posted.total - cut_offset_);
    const auto started = post_piece(posted, bytes);
    if (!started.ok()) {
      fail(started.status());
      return true;
    }
    if (!*started) {
      break;
    }
    if (posted.fragments) {
      slots_[next_slot_] = {SlotState::kPosted, cut_message_, cut_offset_, bytes};
      next_slot_ = (next_slot_ + 1) % kSlots;
    }
    moved = true;
    ++under_way_;
    turn_ = (turn_ + 1) % comms_.size();
    cut_offset_ += bytes;
    if (bytes < piece_bytes_) {
      ++cut_message_;
      cut_offset_ = 0;
    }
  }
  return moved;
}

/// False: the connection takes no more now.
Result<bool> PluginRecvChannel::post_piece(const Posted& posted, std::size_t bytes) {
  PluginComm& comm = *comms_[turn_];
  if (posted.taker.take != nullptr) {
    return comm.post_taken(bytes, cut_offset_, posted.taker, kWhole + cut_message_);
  }
  if (posted.fragments) {
    LIGHTCC_RETURN_IF_ERROR(prepare_staging());
    const auto memory = slot_memory(next_slot_);
    return comm.post(memory.first(bytes), memory, next_slot_);
  }
  const PieceOfMessage piece(posted.into, cut_offset_, piece_bytes_);
  return comm.post(piece.bytes, piece.registered, kWhole + cut_message_);
}

Status PluginRecvChannel::prepare_staging() {
  if (staging_ != nullptr) {
    return {};
  }
  const std::size_t lines = kSlots * piece_bytes_ / kPieceAlignment;
  staging_ = std::make_unique_for_overwrite<CacheLine[]>(lines);  // NOLINT: an array, by name
  for (const auto& comm : comms_) {
    LIGHTCC_RETURN_IF_ERROR(comm->pin(std::as_writable_bytes(std::span(staging_.get(), lines))));
  }
  return {};
}

std::span<std::byte> PluginRecvChannel::slot_memory(std::size_t slot) const {
  auto* const all = reinterpret_cast<std::byte*>(staging_.get());
  return {all + slot * piece_bytes_, piece_bytes_};
}

Result<std::optional<Fragment>> PluginRecvChannel::next_fragment(RequestId request) {
  if (queue_.is_done(request)) {
    return std::optional<Fragment>();
  }
  if (queue_.is_over()) {
    return queue_.error();
  }
  const Posted* posted = queue_.find(request);
  if (posted == nullptr || !posted->fragments || lent_) {
    return make_error(ErrorCode::kInvalidArgument,
                      lent_ ? "next_fragment() before release() of the last one"
                            : "next_fragment() of a request that irecv_fragments() did not make");
  }
  // From the oldest slot on.
  for (std::size_t i = 0; i < kSlots; ++i) {
    const std::size_t index = (next_slot_ + i) % kSlots;
    Slot& slot = slots_[index];
    if (slot.state == SlotState::kArrived && slot.message == request) {
      slot.state = SlotState::kLent;
      lent_ = index;
      return std::optional<Fragment>({slot.offset, slot_memory(index).first(slot.bytes)});
    }
  }
  return std::optional<Fragment>();
}

void PluginRecvChannel::release(const Fragment& fragment) {
  if (!lent_) {
    return;
  }
  const std::size_t index = *std::exchange(lent_, std::nullopt);
  if (queue_.is_over()) {
    return;
  }
  Slot& slot = slots_[index];
  if (fragment.bytes.data() != slot_memory(index).data() || fragment.bytes.size() != slot.bytes) {
    fail(make_error(ErrorCode::kInvalidArgument, "release() of something else than the fragment"));
    return;
  }
  slot.state = SlotState::kFree;
  finish_piece(slot.message);
  (void)post_pieces();
  if (is_active()) {
    loop_->expect_work();
  }
}

}  // namespace lightcc
