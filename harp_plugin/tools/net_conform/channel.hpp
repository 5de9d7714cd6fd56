// How the two sides of a case talk to each other, whether they are threads or processes.
//
// Framed messages over two descriptors. Both sides run the same cases in the same order; what they
// say within a case is counted, and a side that gives a case up says so, so that the other does not
// wait for it and both meet again at the next case.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace net_conform {

/// The other side gave the case up, or is gone.
class PeerStopped {
 public:
  explicit PeerStopped(bool is_gone) : is_gone_(is_gone) {}
  bool is_gone() const { return is_gone_; }

 private:
  bool is_gone_;
};

/// Thread: one. Owns the descriptors.
class Channel {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  Channel(int read_fd, int write_fd) : read_fd_(read_fd), write_fd_(write_fd) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel() { close(); }
  /// Tells the other side that nothing will come any more.
  void close();

  void begin_case(std::uint32_t number);
  void send(std::span<const std::byte> data);
  /// Throws PeerStopped; also where the deadline passes.
  std::vector<std::byte> receive(TimePoint deadline);
  /// Both sides are here.
  void meet(TimePoint deadline);
  /// Ends the case with what there is to report; returns the other side's.
  std::string end_case(const std::string& lines, TimePoint deadline);

 private:
  enum class Kind : std::uint32_t { kData = 1, kEnd = 2 };
  struct Frame {
    std::uint32_t number;
    Kind kind;
    std::uint64_t bytes;
  };
  void write_all(const void* data, std::size_t bytes);
  void read_all(void* data, std::size_t bytes, TimePoint deadline);
  void send_frame(Kind kind, std::span<const std::byte> data);
  Kind receive_frame(std::vector<std::byte>* data, TimePoint deadline);

  int read_fd_;
  int write_fd_;
  std::uint32_t number_ = 0;
  bool peer_has_ended_ = false;
  std::vector<std::byte> peer_lines_;
};

}  // namespace net_conform
