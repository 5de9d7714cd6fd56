// Operations over MPI that move bytes as they are.
#pragma once

#include <memory>
#include <vector>

#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/mpi_parts.hpp"
#include "lightcc/collectives/mpi_work.hpp"
#include "lightcc/collectives/net_bucket.hpp"

namespace lightcc {

/// All-gather from and to the tensors of a bucket, cut into `counts`, one part for each member.
class MpiAllgather final : public MpiWork {
 public:
  MpiAllgather(std::shared_ptr<MpiLink> link,
               BucketView view,
               std::vector<std::size_t> counts,
               std::size_t chunk_bytes);

 private:
  std::size_t bytes_of(std::size_t round) const override;
  int begin(std::size_t round, MpiSlot& slot) override;
  void end(std::size_t round, MpiSlot& slot) override;

  BucketView view_;
  MpiParts parts_;
};

class MpiBroadcast final : public MpiWork {
 public:
  MpiBroadcast(std::shared_ptr<MpiLink> link,
               std::byte* data,
               std::size_t bytes,
               int root,
               std::size_t chunk_bytes);

 private:
  std::size_t bytes_of(std::size_t round) const override { return chunks_.bytes_of(round); }
  int begin(std::size_t round, MpiSlot& slot) override;
  void end(std::size_t round, MpiSlot& slot) override;

  std::byte* data_;  // Null: the data is not wanted.
  MpiChunks chunks_;
  int root_;
};

/// What every pair has up to a limit travels in one all-to-all. How much more it has, only the pair
/// itself knows: that travels as messages between the two, pair by pair.
class MpiAlltoall final : public MpiWork {
 public:
  MpiAlltoall(std::shared_ptr<MpiLink> link,
              const std::byte* in,
              std::vector<std::size_t> send_bytes,
              std::byte* out,
              std::vector<std::size_t> recv_bytes,
              std::size_t chunk_bytes);

 private:
  /// A message of the second part.
  struct Message {
    bool sends = false;
    int peer = 0;
    std::size_t offset = 0;  // In `in` or `out`.
    std::size_t bytes = 0;
  };

  std::size_t bytes_of(std::size_t round) const override;
  int begin(std::size_t round, MpiSlot& slot) override;
  void end(std::size_t round, MpiSlot& slot) override;
  void add_messages(std::size_t chunk_bytes);

  const std::byte* in_;
  std::byte* out_;
  std::vector<std::size_t> send_bytes_;
  std::vector<std::size_t> recv_bytes_;
  std::size_t limit_;  // Bytes of a pair.
  std::vector<Message> messages_;
};

class MpiSend final : public MpiWork {
 public:
  MpiSend(std::shared_ptr<MpiLink> link,
          const std::byte* in,
          std::size_t bytes,
          int peer,
          std::size_t chunk_bytes);

 private:
  std::size_t bytes_of(std::size_t round) const override { return chunks_.bytes_of(round); }
  int begin(std::size_t round, MpiSlot& slot) override;
  void end(std::size_t /*round*/, MpiSlot& /*slot*/) override {}

  const std::byte* in_;
  MpiChunks chunks_;
  int peer_;
};

class MpiRecv final : public MpiWork {
 public:
  MpiRecv(std::shared_ptr<MpiLink> link,
          std::byte* out,
          std::size_t bytes,
          int peer,
          std::size_t chunk_bytes);

 private:
  std::size_t bytes_of(std::size_t round) const override { return chunks_.bytes_of(round); }
  int begin(std::size_t round, MpiSlot& slot) override;
  void end(std::size_t round, MpiSlot& slot) override;

  std::byte* out_;
  MpiChunks chunks_;
  int peer_;
};

class MpiBarrier final : public MpiWork {
 public:
  explicit MpiBarrier(std::shared_ptr<MpiLink> link);

 private:
  std::size_t bytes_of(std::size_t /*round*/) const override { return 0; }
  int begin(std::size_t round, MpiSlot& slot) override;
  void end(std::size_t /*round*/, MpiSlot& /*slot*/) override {}
};

}  // namespace lightcc
