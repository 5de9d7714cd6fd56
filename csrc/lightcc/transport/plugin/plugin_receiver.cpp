#include "lightcc/transport/plugin/plugin_receiver.hpp"

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
                                     bool can_receive_to_sink)
    : RecvMachine(id.source), loop_(std::move(loop)), can_take_(can_receive_to_sink) {
  loop_->join(*this);
}

PluginRecvChannel::~PluginRecvChannel() {
  cancel();
  loop_->leave(*this);
}

void PluginRecvChannel::attach(std::unique_ptr<PluginComm> comm, const ChannelHello& hello) {
  take_hello(hello, piece_cut(hello.piece_bytes));
  comms_.resize(hello.count);
  comm->set_peer(peer());
  comms_[hello.index] = std::move(comm);
}

void PluginRecvChannel::on_post() {
  (void)post_pieces();
  if (!is_over()) {
    loop_->expect_work();
  }
}

void PluginRecvChannel::close() {
  for (auto& comm : comms_) {
    comm.reset();  // The staging stays: the caller may still hold a fragment.
  }
  under_way_ = 0;
}

bool PluginRecvChannel::is_active() const {
  return !is_over() && missing() == 0 && (under_way_ > 0 || can_post());
}

bool PluginRecvChannel::can_post() const {
  if (next_.message() >= receives().end()) {
    return false;
  }
  const Posted& posted = receives()[next_.message()];
  return !posted.fragments || slots_[next_slot_].state == SlotState::kFree;
}

bool PluginRecvChannel::pump() {
  bool moved = false;
  for (std::size_t i = 0; i < comms_.size() && !is_over(); ++i) {
    moved = settle(*comms_[i]) || moved;
  }
  return (!is_over() && post_pieces()) || moved;
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
    if (is_over()) {
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
                    peer(),
                    done.bytes,
                    printable(message),
                    done.expected));
    return;
  }
  if (is_whole || done.expected == 0) {
    if (!is_whole) {
      slots_[static_cast<std::size_t>(done.cookie)].state = SlotState::kFree;
    }
    settle_piece(message);
  } else {
    slots_[static_cast<std::size_t>(done.cookie)].state = SlotState::kArrived;
  }
}

void PluginRecvChannel::settle_piece(RequestId message) {
  if (finish_piece(message)) {
    for (const auto& comm : comms_) {
      comm->forget_idle();
    }
  }
}

// hot
bool PluginRecvChannel::post_pieces() {
  bool moved = false;
  while (missing() == 0 && can_post() && !comms_[turn_]->is_full()) {
    const Posted& posted = receives()[next_.message()];
    if (next_.offset() == 0) {
      count_pieces(next_.message());
    }
    const std::size_t bytes = cut().length(posted.total, next_.offset());
    const auto started = post_piece(posted, bytes);
    if (!started.ok()) {
      fail(started.status());
      return true;
    }
    if (!*started) {
      break;
    }
    if (posted.fragments) {
      slots_[next_slot_] = {SlotState::kPosted, next_.message(), next_.offset(), bytes};
      next_slot_ = (next_slot_ + 1) % kSlots;
    }
    moved = true;
    ++under_way_;
    turn_ = (turn_ + 1) % comms_.size();
    next_.step(cut(), posted.total);
  }
  return moved;
}

/// False: the connection takes no more now.
Result<bool> PluginRecvChannel::post_piece(const Posted& posted, std::size_t bytes) {
  PluginComm& comm = *comms_[turn_];
  if (posted.sink.take != nullptr) {
    return comm.post_to_sink(bytes, next_.offset(), posted.sink, kWhole + next_.message());
  }
  if (posted.fragments) {
    LIGHTCC_RETURN_IF_ERROR(prepare_staging());
    const auto memory = slot_memory(next_slot_);
    return comm.post(memory.first(bytes), memory, next_slot_);
  }
  return comm.post(posted.into.subspan(next_.offset(), bytes),
                   registered_part(posted.into, next_.offset(), cut().piece_bytes),
                   kWhole + next_.message());
}

Status PluginRecvChannel::prepare_staging() {
  if (staging_ != nullptr) {
    return {};
  }
  const std::size_t lines = kSlots * cut().piece_bytes / kPieceAlignment;
  staging_ = std::make_unique_for_overwrite<CacheLine[]>(lines);  // NOLINT: an array, by name
  for (const auto& comm : comms_) {
    LIGHTCC_RETURN_IF_ERROR(comm->pin(std::as_writable_bytes(std::span(staging_.get(), lines))));
  }
  return {};
}

std::span<std::byte> PluginRecvChannel::slot_memory(std::size_t slot) const {
  auto* const all = reinterpret_cast<std::byte*>(staging_.get());
  return {all + slot * cut().piece_bytes, cut().piece_bytes};
}

bool PluginRecvChannel::lend(RequestId request, Fragment* fragment) {
  // From the oldest slot on.
  for (std::size_t i = 0; i < kSlots; ++i) {
    const std::size_t index = (next_slot_ + i) % kSlots;
    Slot& slot = slots_[index];
    if (slot.state == SlotState::kArrived && slot.message == request) {
      slot.state = SlotState::kLent;
      lent_ = index;
      *fragment = {.offset = slot.offset, .bytes = slot_memory(index).first(slot.bytes)};
      return true;
    }
  }
  return false;
}

void PluginRecvChannel::take_back(std::size_t /*bytes*/) {
  Slot& slot = slots_[lent_];
  slot.state = SlotState::kFree;
  settle_piece(slot.message);
  (void)post_pieces();
  if (is_active()) {
    loop_->expect_work();
  }
}

}  // namespace lightcc
