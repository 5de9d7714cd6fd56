#include "lightcc/collectives/checked_group.hpp"

#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {
namespace {

constexpr std::size_t kMaxBytes = std::numeric_limits<std::ptrdiff_t>::max();

/// The sum of `counts` times `width`, if it is a size that memory can have.
std::optional<std::size_t> total_bytes(std::span<const std::size_t> counts, std::size_t width) {
  std::size_t total = 0;
  for (const std::size_t count : counts) {
    if (count > (kMaxBytes - total) / width) {
      return std::nullopt;
    }
    total += count * width;
  }
  return total;
}

std::optional<std::size_t> total_bytes(std::span<const TensorSpan> tensors, std::size_t width) {
  std::size_t total = 0;
  for (const TensorSpan& tensor : tensors) {
    if (tensor.count > (kMaxBytes - total) / width) {
      return std::nullopt;
    }
    total += tensor.count * width;
  }
  return total;
}

Status too_large() {
  return make_error(ErrorCode::kInvalidArgument,
                    "the tensors of one operation together exceed %zu bytes",
                    kMaxBytes);
}

Status check_reduction(const Reduction& reduction) {
  if (!is_elementwise(reduction)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a group cannot reduce %s with %s",
                      data_type_name(reduction.dtype),
                      reduce_op_name(reduction.op));
  }
  return {};
}

class CheckedGroup final : public Group {
 public:
  explicit CheckedGroup(std::unique_ptr<Group> group) : group_(std::move(group)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }

  std::unique_ptr<Work> allreduce(std::vector<TensorSpan> tensors,
                                  const Reduction& reduction) override {
    Status status = check_reduction(reduction);
    if (status.ok() && !total_bytes(tensors, element_size(reduction.dtype))) {
      status = too_large();
    }
    return start(std::move(status),
                 [&] { return group_->allreduce(std::move(tensors), reduction); });
  }
  std::unique_ptr<Work> reduce_scatter(const std::byte* in,
                                       std::byte* out,
                                       std::vector<std::size_t> counts,
                                       const Reduction& reduction) override {
    Status status = check_reduction(reduction);
    if (status.ok()) {
      status = check_blocks(counts, element_size(reduction.dtype));
    }
    return start(std::move(status),
                 [&] { return group_->reduce_scatter(in, out, std::move(counts), reduction); });
  }
  std::unique_ptr<Work> reduce_scatter_bucket(std::vector<TensorSpan> tensors,
                                              std::vector<std::size_t> counts,
                                              const Reduction& reduction) override {
    Status status = check_reduction(reduction);
    if (status.ok()) {
      status = check_parts(tensors, counts, element_size(reduction.dtype));
    }
    return start(std::move(status), [&] {
      return group_->reduce_scatter_bucket(std::move(tensors), std::move(counts), reduction);
    });
  }
  std::unique_ptr<Work> allgather_bucket(std::vector<TensorSpan> tensors,
                                         std::vector<std::size_t> counts,
                                         DataType dtype) override {
    return start(check_parts(tensors, counts, element_size(dtype)), [&] {
      return group_->allgather_bucket(std::move(tensors), std::move(counts), dtype);
    });
  }
  std::unique_ptr<Work> allgather(const std::byte* in,
                                  std::byte* out,
                                  std::vector<std::size_t> bytes) override {
    return start(check_blocks(bytes, 1),
                 [&] { return group_->allgather(in, out, std::move(bytes)); });
  }
  std::unique_ptr<Work> broadcast(std::byte* data, std::size_t bytes, int root) override {
    Status status;
    if (!is_member(root) || bytes > kMaxBytes) {
      status = make_error(ErrorCode::kInvalidArgument,
                          "broadcast of %zu bytes from member %d of a group of %d",
                          bytes,
                          root,
                          size());
    }
    return start(std::move(status), [&] { return group_->broadcast(data, bytes, root); });
  }
  std::unique_ptr<Work> alltoall(const std::byte* in,
                                 std::vector<std::size_t> send_bytes,
                                 std::byte* out,
                                 std::vector<std::size_t> recv_bytes) override {
    Status status = check_blocks(send_bytes, 1);
    if (status.ok()) {
      status = check_blocks(recv_bytes, 1);
    }
    const auto own = static_cast<std::size_t>(rank());
    if (status.ok() && send_bytes[own] != recv_bytes[own]) {
      status = make_error(ErrorCode::kInvalidArgument,
                          "alltoall: a member sends itself %zu bytes and expects %zu",
                          send_bytes[own],
                          recv_bytes[own]);
    }
    return start(std::move(status), [&] {
      return group_->alltoall(in, std::move(send_bytes), out, std::move(recv_bytes));
    });
  }
  std::unique_ptr<Work> send(const std::byte* in, std::size_t bytes, int peer) override {
    return start(check_peer(peer), [&] { return group_->send(in, bytes, peer); });
  }
  std::unique_ptr<Work> recv(std::byte* out, std::size_t bytes, int peer) override {
    return start(check_peer(peer), [&] { return group_->recv(out, bytes, peer); });
  }
  std::unique_ptr<Work> barrier() override { return group_->barrier(); }
  Group& group_for(std::size_t bytes) override {
    Group& group = group_->group_for(bytes);
    return &group == group_.get() ? *this : group;
  }

 private:
  template <typename Start>
  static std::unique_ptr<Work> start(Status status, Start start) {
    return status.ok() ? start() : std::make_unique<FailedWork>(std::move(status));
  }
  bool is_member(int rank) const { return rank >= 0 && rank < size(); }
  /// Whether there is one block for each member, in elements of `width` bytes.
  Status check_blocks(std::span<const std::size_t> blocks, std::size_t width) const {
    if (blocks.size() != static_cast<std::size_t>(size())) {
      return make_error(ErrorCode::kInvalidArgument,
                        "%zu blocks were given for a group of %d members",
                        blocks.size(),
                        size());
    }
    if (width == 0) {
      return make_error(ErrorCode::kInvalidArgument, "a group does not know this data type");
    }
    return total_bytes(blocks, width) ? Status() : too_large();
  }
  /// Whether `counts` are the members' parts of `tensors`.
  Status check_parts(std::span<const TensorSpan> tensors,
                     std::span<const std::size_t> counts,
                     std::size_t width) const {
    LIGHTCC_RETURN_IF_ERROR(check_blocks(counts, width));
    const auto bytes = total_bytes(tensors, width);
    if (!bytes) {
      return too_large();
    }
    if (bytes != total_bytes(counts, width)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "the members' parts together are not the %zu bytes of the tensors",
                        *bytes);
    }
    return {};
  }
  Status check_peer(int peer) const {
    if (!is_member(peer) || peer == rank()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "member %d of a group of %d cannot send to or receive from member %d",
                        rank(),
                        size(),
                        peer);
    }
    return {};
  }

  std::unique_ptr<Group> group_;
};

}  // namespace

std::unique_ptr<Group> make_checked_group(std::unique_ptr<Group> group) {
  return group == nullptr ? nullptr : std::make_unique<CheckedGroup>(std::move(group));
}

}  // namespace lightcc
