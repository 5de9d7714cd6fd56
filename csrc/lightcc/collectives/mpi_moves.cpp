#include "lightcc/collectives/mpi_moves.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace lightcc {
namespace {

constexpr int kMessageTag = 0;  // MPI keeps the order of one pair's messages.

void copy_block(std::byte* out, const std::byte* in, std::size_t bytes) {
  if (bytes > 0) {
    std::memcpy(out, in, bytes);
  }
}

/// Where each block begins when all lie one after another.
void set_offsets(const std::vector<int>& counts, std::vector<int>& offsets) {
  offsets.clear();
  int offset = 0;
  for (const int count : counts) {
    offsets.push_back(offset);
    offset += count;
  }
}

}  // namespace

MpiAllgather::MpiAllgather(std::shared_ptr<MpiLink> link,
                           BucketView view,
                           std::vector<std::size_t> counts,
                           std::size_t chunk_bytes)
    : MpiWork(std::move(link), "MPI_Iallgatherv"),
      view_(std::move(view)),
      parts_(std::move(counts), chunk_bytes / view_.element_bytes()) {
  set_rounds(parts_.rounds());
}

std::size_t MpiAllgather::bytes_of(std::size_t round) const {
  return parts_.count_of(round) * view_.element_bytes();
}

int MpiAllgather::begin(std::size_t round, MpiSlot& slot) {
  slot.counts.clear();
  for (std::size_t member = 0; member < parts_.members(); ++member) {
    slot.counts.push_back(
        static_cast<int>(parts_.range(round, member).count * view_.element_bytes()));
  }
  set_offsets(slot.counts, slot.offsets);
  const auto own = static_cast<std::size_t>(link().rank());
  view_.pack(parts_.range(round, own), slot.memory.get() + slot.offsets[own]);
  const MpiHandle byte = link().library().byte();
  return mpi().iallgatherv(link().library().in_place(),
                           0,
                           byte,
                           slot.memory.get(),
                           slot.counts.data(),
                           slot.offsets.data(),
                           byte,
                           link().comm(),
                           &slot.request);
}

void MpiAllgather::end(std::size_t round, MpiSlot& slot) {
  for (std::size_t member = 0; member < parts_.members(); ++member) {
    const auto bytes = static_cast<std::size_t>(slot.counts[member]);
    view_.unpack(parts_.range(round, member),
                 0,
                 std::span<const std::byte>(slot.memory.get() + slot.offsets[member], bytes));
  }
}

MpiBroadcast::MpiBroadcast(std::shared_ptr<MpiLink> link,
                           std::byte* data,
                           std::size_t bytes,
                           int root,
                           std::size_t chunk_bytes)
    : MpiWork(std::move(link), "MPI_Ibcast"),
      data_(data),
      chunks_(bytes, chunk_bytes),
      root_(root) {
  set_rounds(chunks_.rounds());
}

int MpiBroadcast::begin(std::size_t round, MpiSlot& slot) {
  if (link().rank() == root_) {
    copy_block(slot.memory.get(), data_ + chunks_.start_of(round), bytes_of(round));
  }
  return mpi().ibcast(slot.memory.get(),
                      static_cast<int>(bytes_of(round)),
                      link().library().byte(),
                      root_,
                      link().comm(),
                      &slot.request);
}

void MpiBroadcast::end(std::size_t round, MpiSlot& slot) {
  if (link().rank() != root_ && data_ != nullptr) {
    copy_block(data_ + chunks_.start_of(round), slot.memory.get(), bytes_of(round));
  }
}

MpiAlltoall::MpiAlltoall(std::shared_ptr<MpiLink> link,
                         const std::byte* in,
                         std::vector<std::size_t> send_bytes,
                         std::byte* out,
                         std::vector<std::size_t> recv_bytes,
                         std::size_t chunk_bytes)
    : MpiWork(std::move(link), "MPI_Ialltoallv or a message of it"),
      in_(in),
      out_(out),
      send_bytes_(std::move(send_bytes)),
      recv_bytes_(std::move(recv_bytes)),
      limit_(std::max<std::size_t>(chunk_bytes / send_bytes_.size(), 1)) {
  add_messages(chunk_bytes);
  set_rounds(1 + messages_.size());
}

// In step s a member sends to the s-th after it and receives from the s-th before it, piece by
// piece. A message waits for its partner only, which comes to it without waiting for later ones.
void MpiAlltoall::add_messages(std::size_t chunk_bytes) {
  std::vector<std::size_t> send_starts;
  std::vector<std::size_t> recv_starts;
  std::size_t sent = 0;
  std::size_t received = 0;
  for (std::size_t member = 0; member < send_bytes_.size(); ++member) {
    send_starts.push_back(sent);
    recv_starts.push_back(received);
    sent += send_bytes_[member];
    received += recv_bytes_[member];
  }
  const std::size_t members = send_bytes_.size();
  const auto me = static_cast<std::size_t>(link().rank());
  for (std::size_t step = 0; step < members; ++step) {
    const std::size_t to = (me + step) % members;
    const std::size_t from = (me + members - step) % members;
    for (std::size_t at = limit_; at < std::max(send_bytes_[to], recv_bytes_[from]);
         at += chunk_bytes) {
      if (at < send_bytes_[to]) {
        messages_.push_back({.sends = true,
                             .peer = static_cast<int>(to),
                             .offset = send_starts[to] + at,
                             .bytes = std::min(chunk_bytes, send_bytes_[to] - at)});
      }
      if (at < recv_bytes_[from]) {
        messages_.push_back({.sends = false,
                             .peer = static_cast<int>(from),
                             .offset = recv_starts[from] + at,
                             .bytes = std::min(chunk_bytes, recv_bytes_[from] - at)});
      }
    }
  }
}

std::size_t MpiAlltoall::bytes_of(std::size_t round) const {
  if (round > 0) {
    return messages_[round - 1].bytes;
  }
  std::size_t bytes = 0;
  for (std::size_t member = 0; member < send_bytes_.size(); ++member) {
    bytes += std::min(send_bytes_[member], limit_) + std::min(recv_bytes_[member], limit_);
  }
  return bytes;
}

int MpiAlltoall::begin(std::size_t round, MpiSlot& slot) {
  const MpiHandle byte = link().library().byte();
  if (round > 0) {
    const Message& message = messages_[round - 1];
    const auto count = static_cast<int>(message.bytes);
    if (message.sends) {
      copy_block(slot.memory.get(), in_ + message.offset, message.bytes);
      return mpi().isend(
          slot.memory.get(), count, byte, message.peer, kMessageTag, link().comm(), &slot.request);
    }
    return mpi().irecv(
        slot.memory.get(), count, byte, message.peer, kMessageTag, link().comm(), &slot.request);
  }
  slot.in_counts.clear();
  slot.counts.clear();
  const std::byte* from = in_;
  std::byte* into = slot.memory.get();
  for (std::size_t member = 0; member < send_bytes_.size(); ++member) {
    const std::size_t bytes = std::min(send_bytes_[member], limit_);
    copy_block(into, from, bytes);
    into += bytes;
    from += send_bytes_[member];
    slot.in_counts.push_back(static_cast<int>(bytes));
    slot.counts.push_back(static_cast<int>(std::min(recv_bytes_[member], limit_)));
  }
  set_offsets(slot.in_counts, slot.in_offsets);
  set_offsets(slot.counts, slot.offsets);
  return mpi().ialltoallv(slot.memory.get(),
                          slot.in_counts.data(),
                          slot.in_offsets.data(),
                          byte,
                          into,
                          slot.counts.data(),
                          slot.offsets.data(),
                          byte,
                          link().comm(),
                          &slot.request);
}

void MpiAlltoall::end(std::size_t round, MpiSlot& slot) {
  if (round > 0) {
    const Message& message = messages_[round - 1];
    if (!message.sends && out_ != nullptr) {
      copy_block(out_ + message.offset, slot.memory.get(), message.bytes);
    }
    return;
  }
  const std::byte* from = slot.memory.get() + slot.in_offsets.back() + slot.in_counts.back();
  std::byte* into = out_;
  for (std::size_t member = 0; member < recv_bytes_.size() && into != nullptr; ++member) {
    const auto bytes = static_cast<std::size_t>(slot.counts[member]);
    copy_block(into, from, bytes);
    from += bytes;
    into += recv_bytes_[member];
  }
}

MpiSend::MpiSend(std::shared_ptr<MpiLink> link,
                 const std::byte* in,
                 std::size_t bytes,
                 int peer,
                 std::size_t chunk_bytes)
    : MpiWork(std::move(link), "MPI_Isend"), in_(in), chunks_(bytes, chunk_bytes), peer_(peer) {
  set_rounds(chunks_.rounds());
}

int MpiSend::begin(std::size_t round, MpiSlot& slot) {
  copy_block(slot.memory.get(), in_ + chunks_.start_of(round), bytes_of(round));
  return mpi().isend(slot.memory.get(),
                     static_cast<int>(bytes_of(round)),
                     link().library().byte(),
                     peer_,
                     kMessageTag,
                     link().comm(),
                     &slot.request);
}

MpiRecv::MpiRecv(std::shared_ptr<MpiLink> link,
                 std::byte* out,
                 std::size_t bytes,
                 int peer,
                 std::size_t chunk_bytes)
    : MpiWork(std::move(link), "MPI_Irecv"), out_(out), chunks_(bytes, chunk_bytes), peer_(peer) {
  set_rounds(chunks_.rounds());
}

int MpiRecv::begin(std::size_t round, MpiSlot& slot) {
  return mpi().irecv(slot.memory.get(),
                     static_cast<int>(bytes_of(round)),
                     link().library().byte(),
                     peer_,
                     kMessageTag,
                     link().comm(),
                     &slot.request);
}

void MpiRecv::end(std::size_t round, MpiSlot& slot) {
  if (out_ != nullptr) {
    copy_block(out_ + chunks_.start_of(round), slot.memory.get(), bytes_of(round));
  }
}

MpiBarrier::MpiBarrier(std::shared_ptr<MpiLink> link) : MpiWork(std::move(link), "MPI_Ibarrier") {
  set_rounds(1);
}

int MpiBarrier::begin(std::size_t /*round*/, MpiSlot& slot) {
  return mpi().ibarrier(link().comm(), &slot.request);
}

}  // namespace lightcc
