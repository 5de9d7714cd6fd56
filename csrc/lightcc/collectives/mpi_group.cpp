#include "lightcc/collectives/mpi_group.hpp"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "lightcc/collectives/mpi_moves.hpp"
#include "lightcc/collectives/mpi_reduce.hpp"

namespace lightcc {
namespace {

/// The group goes on.
std::unique_ptr<Work> refusal(const char* why) {
  return std::make_unique<FailedWork>(Status(ErrorCode::kInvalidArgument, why));
}

class MpiGroup final : public Group {
 public:
  MpiGroup(std::shared_ptr<MpiLink> link, const MpiGroupOptions& options)
      : link_(std::move(link)), options_(options) {}

  int rank() const override { return link_->rank(); }
  int size() const override { return link_->size(); }

  std::unique_ptr<Work> allreduce(std::vector<TensorSpan> tensors,
                                  const Reduction& reduction) override;
  std::unique_ptr<Work> reduce_scatter(const std::byte* in,
                                       std::byte* out,
                                       std::vector<std::size_t> counts,
                                       const Reduction& reduction) override;
  std::unique_ptr<Work> reduce_scatter_bucket(std::vector<TensorSpan> tensors,
                                              std::vector<std::size_t> counts,
                                              const Reduction& reduction) override;
  std::unique_ptr<Work> allgather_bucket(std::vector<TensorSpan> tensors,
                                         std::vector<std::size_t> counts,
                                         DataType dtype) override;
  std::unique_ptr<Work> allgather(const std::byte* in,
                                  std::byte* out,
                                  std::vector<std::size_t> bytes) override;
  std::unique_ptr<Work> broadcast(std::byte* data, std::size_t bytes, int root) override;
  std::unique_ptr<Work> alltoall(const std::byte* in,
                                 std::vector<std::size_t> send_bytes,
                                 std::byte* out,
                                 std::vector<std::size_t> recv_bytes) override;
  std::unique_ptr<Work> send(const std::byte* in, std::size_t bytes, int peer) override;
  std::unique_ptr<Work> recv(std::byte* out, std::size_t bytes, int peer) override;
  std::unique_ptr<Work> barrier() override { return std::make_unique<MpiBarrier>(link_); }

 private:
  /// Whether `counts` has one part for each member, and together they are the elements of `view`.
  bool are_parts(const BucketView& view, const std::vector<std::size_t>& counts) const;
  bool is_other_member(int peer) const { return peer >= 0 && peer < size() && peer != rank(); }

  std::shared_ptr<MpiLink> link_;
  MpiGroupOptions options_;
};

std::unique_ptr<Work> MpiGroup::allreduce(std::vector<TensorSpan> tensors,
                                          const Reduction& reduction) {
  if (!is_elementwise(reduction)) {
    return refusal("allreduce: this operator is not defined on this type");
  }
  const BucketView view(tensors, element_size(reduction.dtype));
  return std::make_unique<MpiAllreduce>(
      link_, MpiElements(view, reduction, options_.simd), options_.chunk_bytes);
}

bool MpiGroup::are_parts(const BucketView& view, const std::vector<std::size_t>& counts) const {
  return counts.size() == link_->members() &&
         std::accumulate(counts.begin(), counts.end(), std::size_t{0}) == view.total_elements();
}

std::unique_ptr<Work> MpiGroup::reduce_scatter(const std::byte* in,
                                               std::byte* out,
                                               std::vector<std::size_t> counts,
                                               const Reduction& reduction) {
  if (counts.size() != link_->members()) {
    return refusal("reduce_scatter: wants one count for each member");
  }
  // A bucket of which only the own part has an output.
  const std::size_t element = element_size(reduction.dtype);
  std::vector<TensorSpan> tensors;
  std::size_t total = 0;
  for (std::size_t member = 0; member < counts.size(); ++member) {
    tensors.push_back({.in = in == nullptr ? nullptr : in + total * element,
                       .out = static_cast<int>(member) == rank() ? out : nullptr,
                       .count = counts[member]});
    total += counts[member];
  }
  return reduce_scatter_bucket(std::move(tensors), std::move(counts), reduction);
}

std::unique_ptr<Work> MpiGroup::reduce_scatter_bucket(std::vector<TensorSpan> tensors,
                                                      std::vector<std::size_t> counts,
                                                      const Reduction& reduction) {
  if (!is_elementwise(reduction)) {
    return refusal("reduce_scatter: this operator is not defined on this type");
  }
  const BucketView view(tensors, element_size(reduction.dtype));
  if (!are_parts(view, counts)) {
    return refusal(
        "reduce_scatter: wants one count for each member, together those of the tensors");
  }
  return std::make_unique<MpiReduceScatter>(
      link_, MpiElements(view, reduction, options_.simd), std::move(counts), options_.chunk_bytes);
}

std::unique_ptr<Work> MpiGroup::allgather_bucket(std::vector<TensorSpan> tensors,
                                                 std::vector<std::size_t> counts,
                                                 DataType dtype) {
  const std::size_t element = element_size(dtype);
  BucketView view(tensors, std::max<std::size_t>(element, 1));
  if (element == 0 || !are_parts(view, counts)) {
    return refusal("allgather: wants one count for each member, together those of the tensors");
  }
  return std::make_unique<MpiAllgather>(
      link_, std::move(view), std::move(counts), options_.chunk_bytes);
}

std::unique_ptr<Work> MpiGroup::allgather(const std::byte* in,
                                          std::byte* out,
                                          std::vector<std::size_t> bytes) {
  if (bytes.size() != link_->members()) {
    return refusal("allgather: wants one size for each member");
  }
  std::vector<TensorSpan> blocks;
  std::size_t offset = 0;
  for (std::size_t member = 0; member < bytes.size(); ++member) {
    blocks.push_back({.in = static_cast<int>(member) == rank() ? in : nullptr,
                      .out = out == nullptr ? nullptr : out + offset,
                      .count = bytes[member]});
    offset += bytes[member];
  }
  return allgather_bucket(std::move(blocks), std::move(bytes), DataType::kUint8);
}

std::unique_ptr<Work> MpiGroup::broadcast(std::byte* data, std::size_t bytes, int root) {
  if (root < 0 || root >= size()) {
    return refusal("broadcast: the root is not a member");
  }
  return std::make_unique<MpiBroadcast>(link_, data, bytes, root, options_.chunk_bytes);
}

std::unique_ptr<Work> MpiGroup::alltoall(const std::byte* in,
                                         std::vector<std::size_t> send_bytes,
                                         std::byte* out,
                                         std::vector<std::size_t> recv_bytes) {
  const auto own = static_cast<std::size_t>(rank());
  if (send_bytes.size() != link_->members() || recv_bytes.size() != link_->members() ||
      send_bytes[own] != recv_bytes[own]) {
    return refusal("alltoall: wants one size for each member, and the own ones alike");
  }
  return std::make_unique<MpiAlltoall>(
      link_, in, std::move(send_bytes), out, std::move(recv_bytes), options_.chunk_bytes);
}

std::unique_ptr<Work> MpiGroup::send(const std::byte* in, std::size_t bytes, int peer) {
  if (!is_other_member(peer)) {
    return refusal("send: the peer is not another member");
  }
  return std::make_unique<MpiSend>(link_, in, bytes, peer, options_.chunk_bytes);
}

std::unique_ptr<Work> MpiGroup::recv(std::byte* out, std::size_t bytes, int peer) {
  if (!is_other_member(peer)) {
    return refusal("recv: the peer is not another member");
  }
  return std::make_unique<MpiRecv>(link_, out, bytes, peer, options_.chunk_bytes);
}

}  // namespace

std::unique_ptr<Group> make_mpi_group(std::shared_ptr<MpiComm> comm,
                                      int rank,
                                      int size,
                                      const MpiGroupOptions& options) {
  return std::make_unique<MpiGroup>(std::make_shared<MpiLink>(std::move(comm), rank, size),
                                    options);
}

}  // namespace lightcc
