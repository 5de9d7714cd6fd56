// All-gather of parts of any sizes B_0 .. B_{n-1}, within a row: everyone sends its part to
// everyone, at once, straight from and to where it belongs.
//
//   steps 1;  bytes sent by member r: (n-1) B_r
//
// A message has what lies together of a part, or several small tensors. These are packed where they
// lie apart, once for all members, and unpacked from the transport's fragments.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/net/net_fragments.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/collectives/net/net_stream.hpp"
#include "lightcc/collectives/net/net_works.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {
namespace {

class NetGather final : public NetWork {
 public:
  /// Both in bytes.
  NetGather(std::shared_ptr<NetLinks> links, BucketView bucket, std::vector<std::size_t> parts)
      : NetWork(std::move(links)), bucket_(std::move(bucket)), parts_(std::move(parts)) {}

 private:
  /// A message that is received; what a transport that shows fragments is given as context.
  struct Taking {
    const BucketView* bucket = nullptr;
    ElementRange message;
    bool scattered = false;
  };
  struct Peer {
    SendQueue sends;
    RecvQueue recvs;
    ElementRange part{};                            ///< What is not asked for yet.
    std::array<Taking, RecvQueue::kMax> takings{};  ///< By position.
  };

  Status begin() override {
    const std::vector<std::size_t> starts = starts_of(parts_);
    for (int distance = 1; distance < links().size(); ++distance) {
      const int member = links().neighbour(distance);
      LIGHTCC_ASSIGN_OR_RETURN(SendChannel* const sender, links().sender(member));
      LIGHTCC_ASSIGN_OR_RETURN(RecvChannel* const receiver, links().receiver(member));
      const auto index = static_cast<std::size_t>(member);
      peers_.push_back({.sends = SendQueue(sender),
                        .recvs = RecvQueue(receiver),
                        .part = {.first = starts[index], .count = parts_[index]}});
    }
    const auto own = static_cast<std::size_t>(links().rank());
    ElementRange part{.first = starts[own], .count = parts_[own]};
    bucket_.for_each_piece(part, [](const TensorSpan& piece, std::size_t /*offset*/) {
      if (piece.out != nullptr && piece.out != piece.in) {
        std::memcpy(piece.out, piece.in, piece.count);
      }
    });
    while (part.count != 0) {
      messages_.push_back(cut_from(part));
    }
    for (const ElementRange& message : messages_) {
      if (bucket_.contiguous_in(message) == nullptr) {
        slot_bytes_ = std::max(slot_bytes_, message.count);
      }
    }
    packed_ = links().scratch(std::min(messages_.size(), kStreamWindow) * slot_bytes_).data();
    return {};
  }
  Result<Progress> step() override {
    bool moved = false;
    bool finished = true;
    for (Peer& peer : peers_) {
      LIGHTCC_ASSIGN_OR_RETURN(const bool sent, advance_sends(peer));
      LIGHTCC_ASSIGN_OR_RETURN(const bool received, advance_recvs(peer));
      moved = moved || sent || received;
      finished = finished && peer.sends.done() == messages_.size() && peer.part.count == 0 &&
                 peer.recvs.idle();
    }
    if (finished) {
      return Progress::kDone;
    }
    return moved ? Progress::kMoved : Progress::kIdle;
  }

  /// The next message of `part`, which it leaves. All members cut alike, as counts are the same.
  ElementRange cut_from(ElementRange& part) const {
    const std::size_t max_bytes = links().options().chunk_bytes;
    ElementRange message{.first = part.first, .count = 0};
    bool full = false;
    bucket_.for_each_piece({.first = part.first, .count = std::min(max_bytes, part.count)},
                           [&](const TensorSpan& piece, std::size_t offset) {
                             const bool alone = piece.count >= lone_tensor_bytes(max_bytes);
                             full = full || (alone && offset != 0);
                             message.count += full ? 0 : piece.count;
                             full = full || alone;
                           });
    part.first += message.count;
    part.count -= message.count;
    return message;
  }

  Result<bool> advance_sends(Peer& peer) {
    auto moved = peer.sends.settle();
    const std::size_t limit = std::min(messages_.size(), peer.sends.done() + kStreamWindow);
    while (moved.ok() && peer.sends.posted() < limit) {
      const std::size_t position = peer.sends.posted();
      const std::byte* const from = message_at(position);
      if (from == nullptr) {
        break;
      }
      const auto request = peer.sends.channel().isend({from, messages_[position].count});
      if (!request.ok()) {
        return request.status();
      }
      peer.sends.note(request.value());
      moved = true;
    }
    return moved;
  }
  /// Null: its place is still taken.
  const std::byte* message_at(std::size_t position) {
    const ElementRange& message = messages_[position];
    if (const std::byte* const in = bucket_.contiguous_in(message); in != nullptr) {
      return in;
    }
    std::byte* const slot = packed_ + position % kStreamWindow * slot_bytes_;
    if (position >= packed_end_) {
      if (std::ranges::any_of(peers_, [&](const Peer& peer) {
            return peer.sends.done() + kStreamWindow <= position;
          })) {
        return nullptr;
      }
      bucket_.pack(message, slot);
      packed_end_ = position + 1;
    }
    return slot;
  }

  Result<bool> advance_recvs(Peer& peer) {
    bool moved = false;
    while (peer.part.count != 0 && peer.recvs.posted() < peer.recvs.done() + kStreamWindow) {
      LIGHTCC_ASSIGN_OR_RETURN(const RequestId request, post_recv(peer));
      peer.recvs.note(request);
      moved = true;
    }
    LIGHTCC_ASSIGN_OR_RETURN(const bool settled,
                             settle_taking(peer.recvs, [&] { return take_arrived(peer); }));
    return moved || settled;
  }
  Result<RequestId> post_recv(Peer& peer) {
    const ElementRange message = cut_from(peer.part);
    std::byte* const into = bucket_.contiguous_out(message);
    Taking& taking = peer.takings[peer.recvs.posted() % peer.takings.size()];
    taking = {.bucket = &bucket_, .message = message, .scattered = into == nullptr};
    return receive_message(
        peer.recvs.channel(), into, message.count, {.take = take_shown, .context = &taking});
  }
  Result<bool> take_arrived(Peer& peer) {
    const Taking& taking = peer.takings[peer.recvs.done() % peer.takings.size()];
    if (peer.recvs.idle() || !taking.scattered) {
      return false;
    }
    return take_fragments(peer.recvs,
                          [&](const Fragment& fragment) { return take(taking, fragment); });
  }
  // Any thread: it reads what is settled once the receive is posted, and writes where nobody else
  // does until it is done.
  static void take_shown(void* context, const Fragment& fragment) {
    (void)take(*static_cast<const Taking*>(context), fragment);
  }
  static Status take(const Taking& taking, const Fragment& fragment) {
    LIGHTCC_RETURN_IF_ERROR(check_fragment(fragment, taking.message.count, 1));
    taking.bucket->unpack(taking.message, fragment.offset, fragment.bytes);
    return {};
  }

  BucketView bucket_;
  std::vector<std::size_t> parts_;
  std::vector<ElementRange> messages_;  ///< The own ones.
  std::byte* packed_ = nullptr;         ///< The latest of these that do not lie together.
  std::size_t slot_bytes_ = 0;          ///< Most bytes of one that does not.
  std::size_t packed_end_ = 0;          ///< Up to this one.
  std::vector<Peer> peers_;
};

}  // namespace

std::unique_ptr<Work> make_net_gather(std::shared_ptr<NetLinks> links,
                                      const std::vector<TensorSpan>& tensors,
                                      std::vector<std::size_t> bytes) {
  return std::make_unique<NetGather>(
      std::move(links), BucketView(tensors, 1, BucketView::Joining::kNothing), std::move(bytes));
}

}  // namespace lightcc
