// The tables that harp-cycles prints.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "bench.hpp"
#include "shape.hpp"
#include "ticks.hpp"

namespace harp_cycles {

struct Row {
  std::string name;
  double hot = 0;
  double cold = 0;
};

/// One end's stages, what is left, and the whole, which is their sum.
struct Side {
  std::string name;
  std::vector<Row> stages;
  Row whole;
  double hot_ns = 0;  ///< A cycle, while the whole was measured.
  double cold_ns = 0;
  Row frame_headers;  ///< In datapaths of whole frames, beside the whole.
};

/// Figures of one set of loops, in the order of stages.hpp.
struct StageFigures {
  std::vector<Figure> transmit;
  std::vector<Figure> receive;
  Figure session;
  Figure turn;
};

Side transmit_side(const StageFigures& hot, const StageFigures& cold);
Side receive_side(const StageFigures& hot, const StageFigures& cold);

void print_clock(const Clock& clock);
void print_stages(const Shape& shape, const std::vector<Side>& sides);
/// What the sums mean: packets and bits per second of one core.
void print_rates(const Shape& shape, const std::vector<Side>& sides);

}  // namespace harp_cycles
