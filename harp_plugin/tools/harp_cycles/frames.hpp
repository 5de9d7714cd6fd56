// Frames as a NIC has them: one after another, each with room for all headers.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "datapath/frame.hpp"
#include "shape.hpp"

namespace harp_cycles {

inline constexpr std::size_t kFrameHeaderBytes = harp::frame_header_bytes(4);

class Frames {
 public:
  Frames(const Shape& shape, std::size_t count)
      : stride_((shape.mtu_bytes + harp::kEthernetBytes + 63) / 64 * 64),
        lengths_(count),
        bytes_(count * stride_) {}

  std::size_t count() const { return lengths_.size(); }
  std::span<std::byte> room(std::size_t index) {
    return std::span(bytes_).subspan(index * stride_, stride_);
  }
  void set_length(std::size_t index, std::size_t bytes) { lengths_[index] = bytes; }
  std::span<std::byte> frame(std::size_t index) { return room(index).first(lengths_[index]); }
  /// What lies behind the headers of the frame.
  std::span<std::byte> packet(std::size_t index) { return frame(index).subspan(kFrameHeaderBytes); }

 private:
  std::size_t stride_;
  std::vector<std::size_t> lengths_;
  std::vector<std::byte> bytes_;
};

}  // namespace harp_cycles
