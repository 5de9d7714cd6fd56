// A group for one purpose: it runs a few operations, and nobody asks for the rest.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

/// Refuses every operation; a subclass overrides those that it runs.
class PartialGroup : public Group {
 public:
  /// `what_runs`, a sentence about what the group does run, is what a refusal says (kInternal).
  explicit PartialGroup(const char* what_runs) : what_runs_(what_runs) {}

  std::unique_ptr<Work> allreduce(std::vector<TensorSpan> /*tensors*/,
                                  const Reduction& /*reduction*/) override {
    return refuse();
  }
  std::unique_ptr<Work> reduce_scatter(const std::byte* /*in*/,
                                       std::byte* /*out*/,
                                       std::vector<std::size_t> /*counts*/,
                                       const Reduction& /*reduction*/) override {
    return refuse();
  }
  std::unique_ptr<Work> reduce_scatter_bucket(std::vector<TensorSpan> /*tensors*/,
                                              std::vector<std::size_t> /*counts*/,
                                              const Reduction& /*reduction*/) override {
    return refuse();
  }
  std::unique_ptr<Work> allgather_bucket(std::vector<TensorSpan> /*tensors*/,
                                         std::vector<std::size_t> /*counts*/,
                                         DataType /*dtype*/) override {
    return refuse();
  }
  std::unique_ptr<Work> allgather(const std::byte* /*in*/,
                                  std::byte* /*out*/,
                                  std::vector<std::size_t> /*bytes*/) override {
    return refuse();
  }
  std::unique_ptr<Work> broadcast(std::byte* /*data*/,
                                  std::size_t /*bytes*/,
                                  int /*root*/) override {
    return refuse();
  }
  std::unique_ptr<Work> alltoall(const std::byte* /*in*/,
                                 std::vector<std::size_t> /*send_bytes*/,
                                 std::byte* /*out*/,
                                 std::vector<std::size_t> /*recv_bytes*/) override {
    return refuse();
  }
  std::unique_ptr<Work> send(const std::byte* /*in*/,
                             std::size_t /*bytes*/,
                             int /*peer*/) override {
    return refuse();
  }
  std::unique_ptr<Work> recv(std::byte* /*out*/, std::size_t /*bytes*/, int /*peer*/) override {
    return refuse();
  }
  std::unique_ptr<Work> barrier() override { return refuse(); }

 protected:
  std::unique_ptr<Work> refuse() const {
    return std::make_unique<FailedWork>(Status(ErrorCode::kInternal, what_runs_));
  }

 private:
  const char* what_runs_;
};

}  // namespace lightcc
