#include "lightcc/wire/control_messages.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace lightcc {
namespace {

enum class FrameKind : std::uint8_t { kReports = 1, kCommands = 2, kError = 3, kHeartbeat = 4 };
enum class ReportKind : std::uint8_t { kRequest = 1, kReadySlot = 2, kLeave = 3 };
constexpr std::uint8_t kOfSubtree = 0x80;   // Beside a report's kind: who asked last follows.
constexpr std::uint8_t kWithInputs = 0x40;  // Beside what asks for something: inputs follow.
constexpr std::uint8_t kInFull = 1;         // The signature of an announced tensor follows.
constexpr std::uint8_t kWithResult = 2;
enum class CommandKind : std::uint8_t {
  kExecute = 1,
  kFailOperation = 2,
  kAddProcessSet = 3,
  kRemoveProcessSet = 4,
  kAllJoined = 5,
  kShutDown = 6,
  kMatchReceive = 7,
};
constexpr std::uint8_t kFirstCompressor = 1;  // 0: none.
constexpr std::uint8_t kTopkFp16 = 1;
constexpr std::uint8_t kTopkExact = 2;
constexpr std::uint8_t kTopkTwoBits = 4;

template <typename Kind>
void put_kind(ByteWriter& out, Kind kind) {
  out.number(static_cast<std::uint8_t>(kind));
}

// Counts are checked against what is left: every element takes at least one byte.
template <typename T, typename Read>
std::vector<T> get_list(ByteReader& in, Read read) {
  const std::uint64_t count = in.varint();
  std::vector<T> list;
  if (count > in.remaining()) {
    in.fail();
    return list;
  }
  // A count may promise far more than a hostile frame delivers: grow with what really parses.
  list.reserve(static_cast<std::size_t>(std::min<std::uint64_t>(count, 1024)));
  for (std::uint64_t i = 0; i < count && in.ok(); ++i) {
    list.push_back(read(in));
  }
  return list;
}

template <typename T>
void put_numbers(ByteWriter& out, const std::vector<T>& values) {
  out.varint(values.size());
  for (const T value : values) {
    out.number(value);
  }
}

template <typename T>
std::vector<T> get_numbers(ByteReader& in) {
  return get_list<T>(in, [](ByteReader& reader) { return reader.number<T>(); });
}

template <typename Enum>
Enum get_enum(ByteReader& in, std::uint8_t count) {
  const auto value = in.number<std::uint8_t>();
  if (value >= count) {
    in.fail();
    return Enum{};
  }
  return static_cast<Enum>(value);
}

bool get_flag(ByteReader& in) {
  enum class Flag : std::uint8_t { kUnset = 0, kSet = 1 };
  return get_enum<Flag>(in, 2) == Flag::kSet;
}

// A larger number is refused, not cut: cut, it would name another rank, slot or process set.
std::uint32_t get_u32(ByteReader& in) {
  const std::uint64_t value = in.varint();
  if (value > std::numeric_limits<std::uint32_t>::max()) {
    in.fail();
    return 0;
  }
  return static_cast<std::uint32_t>(value);
}

std::int32_t get_rank(ByteReader& in) {
  const std::uint32_t rank = get_u32(in);
  if (rank > static_cast<std::uint32_t>(std::numeric_limits<std::int32_t>::max())) {
    in.fail();
    return 0;
  }
  return static_cast<std::int32_t>(rank);
}

void put_segments(ByteWriter& out, const std::vector<RowSegment>& segments) {
  out.varint(segments.size());
  for (const RowSegment& segment : segments) {
    out.varint(segment.elements);
    out.number(static_cast<std::uint8_t>(segment.bits));
  }
}

std::vector<RowSegment> get_segments(ByteReader& in) {
  std::vector<RowSegment> segments;
  for (std::uint64_t left = in.varint(); left > 0 && in.ok(); --left) {
    RowSegment& segment = segments.emplace_back();
    segment.elements = in.varint();
    segment.bits = in.number<std::uint8_t>();
    if (!segment.is_valid()) {
      in.fail();
    }
  }
  return segments;
}

// A byte says which compressor, and what that has follows it.
void put(ByteWriter& out, const std::optional<CompressionSpec>& spec) {
  out.number(static_cast<std::uint8_t>(
      spec.has_value() ? kFirstCompressor + static_cast<std::uint8_t>(spec->compressor) : 0));
  if (!spec) {
    return;
  }
  if (spec->is_quantized()) {
    return put_segments(out, spec->segments);
  }
  out.number(static_cast<std::uint8_t>((spec->fp16 ? kTopkFp16 : 0) |
                                       (spec->exact ? kTopkExact : 0) |
                                       (spec->two_bits ? kTopkTwoBits : 0)));
  out.number(spec->ratio);
  out.number(spec->momentum);
  out.varint(spec->warmup_steps);
}

std::optional<CompressionSpec> get_compression(ByteReader& in) {
  const auto kind = in.number<std::uint8_t>();
  if (kind < kFirstCompressor) {
    return std::nullopt;
  }
  if (kind - kFirstCompressor >= kCompressorCount) {
    in.fail();
    return std::nullopt;
  }
  CompressionSpec spec{.compressor = static_cast<Compressor>(kind - kFirstCompressor)};
  if (spec.is_quantized()) {
    spec.segments = get_segments(in);
    return spec;
  }
  const auto flags = in.number<std::uint8_t>();
  spec.fp16 = (flags & kTopkFp16) != 0;
  spec.exact = (flags & kTopkExact) != 0;
  spec.two_bits = (flags & kTopkTwoBits) != 0;
  spec.ratio = in.number<double>();
  spec.momentum = in.number<double>();
  spec.warmup_steps = get_u32(in);
  if (!spec.is_valid() || (flags & ~(kTopkFp16 | kTopkExact | kTopkTwoBits)) != 0) {
    in.fail();
  }
  return spec;
}

void put(ByteWriter& out, const Signature& s) {
  out.number(static_cast<std::uint8_t>(s.op));
  out.number(static_cast<std::uint8_t>(s.dtype));
  out.number(static_cast<std::uint8_t>(s.memory));
  out.number(static_cast<std::uint8_t>(s.reduce_op));
  out.varint(s.process_set);
  out.number(s.root_or_peer);
  out.number(s.prescale);
  out.number(s.postscale);
  out.string(s.name);
  out.number(static_cast<std::uint8_t>(s.is_automatic));
  out.string(s.group);
  out.varint(s.group_size);
  out.number(static_cast<std::uint8_t>(s.fusion.rule));
  out.varint(s.fusion.limit_bytes);
  put_numbers(out, s.shape);
  put(out, s.compression);
  if (s.compression) {
    out.number(s.steps_ahead);
  }
  if (is_transfer(s.op)) {
    out.string(s.mailbox);
  }
}

Signature get_signature(ByteReader& in) {
  Signature s;
  s.op = get_enum<OpType>(in, kOpTypeCount);
  s.dtype = get_enum<DataType>(in, kDataTypeCount);
  s.memory = get_enum<MemoryKind>(in, kMemoryKindCount);
  s.reduce_op = get_enum<ReduceOp>(in, kReduceOpCount);
  s.process_set = get_u32(in);
  s.root_or_peer = in.number<std::int32_t>();
  s.prescale = in.number<double>();
  s.postscale = in.number<double>();
  s.name = in.string(kMaxNameBytes);
  s.is_automatic = get_flag(in);
  s.group = in.string(kMaxNameBytes);
  s.group_size = get_u32(in);
  s.fusion.rule = get_enum<FusionRule>(in, kFusionRuleCount);
  s.fusion.limit_bytes = in.varint();
  s.shape = get_numbers<std::int64_t>(in);
  if (s.shape.size() > kMaxDimensions) {
    in.fail();
  }
  s.compression = get_compression(in);
  if (s.compression) {
    s.steps_ahead = in.number<std::int64_t>();
  }
  if (is_transfer(s.op)) {
    s.mailbox = in.string(kMaxNameBytes);
  }
  return s;
}

void put_inputs(ByteWriter& out, const std::vector<InlineInput>& inputs) {
  if (inputs.empty()) {
    return;
  }
  out.varint(inputs.size());
  for (const InlineInput& input : inputs) {
    out.varint(static_cast<std::uint32_t>(input.rank));
    out.blob(input.data);
  }
}

InlineInput get_input(ByteReader& in) {
  InlineInput input;
  input.rank = get_rank(in);
  const auto data = in.blob(kMaxInlineBytes);
  input.data.assign(data.begin(), data.end());
  return input;
}

void put(ByteWriter& out, const Report& report) {
  const auto put_head = [&](ReportKind kind) {
    const int flags =
        (report.is_of_subtree() ? kOfSubtree : 0) | (report.inputs.empty() ? 0 : kWithInputs);
    out.varint(report.rank);
    out.number(static_cast<std::uint8_t>(static_cast<int>(kind) | flags));
    if (report.is_of_subtree()) {
      out.varint(static_cast<std::uint32_t>(report.last_rank));
    }
  };
  if (const auto* request = std::get_if<Request>(&report.what)) {
    put_head(ReportKind::kRequest);
    put(out, request->signature);
    put_numbers(out, request->splits);
    put_numbers(out, request->ranks);
    out.string(request->objection);
    put_inputs(out, report.inputs);
  } else if (const auto* ready = std::get_if<ReadySlot>(&report.what)) {
    put_head(ReportKind::kReadySlot);
    out.varint(ready->slot);
    put_inputs(out, report.inputs);
  } else {
    put_head(ReportKind::kLeave);
  }
}

Report get_report(ByteReader& in) {
  Report report;
  report.rank = get_u32(in);
  const auto kind = in.number<std::uint8_t>();
  if ((kind & kOfSubtree) != 0) {
    report.last_rank = get_rank(in);
  }
  const int bare = kind & ~(kOfSubtree | kWithInputs);
  switch (static_cast<ReportKind>(bare)) {  // NOLINT: any byte; others fail below
    case ReportKind::kRequest: {
      Request request;
      request.signature = get_signature(in);
      request.splits = get_numbers<std::int64_t>(in);
      request.ranks = get_numbers<std::int32_t>(in);
      request.objection = in.string(kMaxObjectionBytes);
      report.what = std::move(request);
      break;
    }
    case ReportKind::kReadySlot:
      report.what = ReadySlot{get_u32(in)};
      break;
    case ReportKind::kLeave:
      report.what = Leave{};
      if (kind != bare) {
        in.fail();  // A rank leaves for itself, with empty hands.
      }
      break;
    default:
      in.fail();
  }
  if ((kind & kWithInputs) != 0) {
    report.inputs = get_list<InlineInput>(in, get_input);
    if (report.inputs.empty()) {
      in.fail();
    }
  }
  return report;
}

void put(ByteWriter& out, const AnnouncedTensor& tensor) {
  out.number(tensor.slot);
  out.number(static_cast<std::uint8_t>((tensor.signature.has_value() ? kInFull : 0) |
                                       (tensor.result.empty() ? 0 : kWithResult)));
  if (tensor.signature.has_value()) {
    put(out, *tensor.signature);
  }
  put_numbers(out, tensor.per_member);
  if (!tensor.result.empty()) {
    out.blob(tensor.result);
  }
}

AnnouncedTensor get_announced(ByteReader& in) {
  AnnouncedTensor tensor;
  tensor.slot = in.number<std::uint32_t>();
  const auto flags = in.number<std::uint8_t>();
  if ((flags & kInFull) != 0) {
    tensor.signature = get_signature(in);
  } else if (tensor.slot == kNoSlot) {
    in.fail();
  }
  tensor.per_member = get_numbers<std::int64_t>(in);
  if ((flags & kWithResult) != 0) {
    const auto result = in.blob(kMaxInlineBytes);
    tensor.result.assign(result.begin(), result.end());
  }
  if ((flags & ~(kInFull | kWithResult)) != 0 ||
      ((flags & kWithResult) != 0 && tensor.result.empty())) {
    in.fail();
  }
  return tensor;
}

struct CommandWriter {
  ByteWriter& out;
  void operator()(const Execute& c) const {
    put_kind(out, CommandKind::kExecute);
    out.varint(c.sequence);
    out.varint(c.process_set);
    out.varint(c.lane);
    out.varint(c.tensors.size());
    for (const AnnouncedTensor& tensor : c.tensors) {
      put(out, tensor);
    }
  }
  void operator()(const FailOperation& c) const {
    put_kind(out, CommandKind::kFailOperation);
    out.varint(c.process_set);
    out.string(c.name);
    out.number(static_cast<std::uint8_t>(c.code));
    out.string(c.message);
  }
  void operator()(const AddProcessSet& c) const {
    put_kind(out, CommandKind::kAddProcessSet);
    out.varint(c.id);
    out.string(c.name);
    put_numbers(out, c.ranks);
  }
  void operator()(const RemoveProcessSet& c) const {
    put_kind(out, CommandKind::kRemoveProcessSet);
    out.varint(c.id);
    out.string(c.name);
  }
  void operator()(const AllJoined& c) const {
    put_kind(out, CommandKind::kAllJoined);
    out.number(c.last_rank);
  }
  void operator()(const ShutDown& c) const {
    put_kind(out, CommandKind::kShutDown);
    out.number(c.rank);
  }
  void operator()(const MatchReceive& c) const {
    put_kind(out, CommandKind::kMatchReceive);
    out.varint(c.process_set);
    out.string(c.receive);
    out.string(c.send);
    out.number(c.source);
  }
};

constexpr std::size_t kMaxMessageBytes = std::size_t{64} << 10;
constexpr std::uint8_t kErrorCodeCount = static_cast<std::uint8_t>(ErrorCode::kInternal) + 1;

Command get_command(ByteReader& in) {
  switch (static_cast<CommandKind>(in.number<std::uint8_t>())) {
    case CommandKind::kExecute: {
      Execute c;
      c.sequence = in.varint();
      c.process_set = get_u32(in);
      c.lane = get_u32(in);
      c.tensors = get_list<AnnouncedTensor>(in, get_announced);
      return c;
    }
    case CommandKind::kFailOperation: {
      FailOperation c;
      c.process_set = get_u32(in);
      c.name = in.string(kMaxNameBytes);
      c.code = get_enum<ErrorCode>(in, kErrorCodeCount);
      c.message = in.string(kMaxMessageBytes);
      if (c.code == ErrorCode::kOk) {
        in.fail();
      }
      return c;
    }
    case CommandKind::kAddProcessSet: {
      AddProcessSet c;
      c.id = get_u32(in);
      c.name = in.string(kMaxNameBytes);
      c.ranks = get_numbers<std::int32_t>(in);
      return c;
    }
    case CommandKind::kRemoveProcessSet: {
      RemoveProcessSet c;
      c.id = get_u32(in);
      c.name = in.string(kMaxNameBytes);
      return c;
    }
    case CommandKind::kAllJoined:
      return AllJoined{in.number<std::int32_t>()};
    case CommandKind::kShutDown:
      return ShutDown{in.number<std::int32_t>()};
    case CommandKind::kMatchReceive: {
      MatchReceive c;
      c.process_set = get_u32(in);
      c.receive = in.string(kMaxNameBytes);
      c.send = in.string(kMaxNameBytes);
      c.source = in.number<std::int32_t>();
      return c;
    }
  }
  in.fail();
  return ShutDown{};
}

struct FrameWriter {
  ByteWriter& out;
  void operator()(const std::vector<Report>& reports) const {
    put_kind(out, FrameKind::kReports);
    out.varint(reports.size());
    for (const Report& report : reports) {
      put(out, report);
    }
  }
  void operator()(const std::vector<Command>& commands) const {
    put_kind(out, FrameKind::kCommands);
    out.varint(commands.size());
    for (const Command& command : commands) {
      std::visit(CommandWriter{out}, command);
    }
  }
  void operator()(const WorldError& error) const {
    put_kind(out, FrameKind::kError);
    out.number(static_cast<std::uint8_t>(error.code));
    out.number(error.rank);
    out.string(std::string_view(error.message).substr(0, kMaxMessageBytes));
  }
  void operator()(const Heartbeat& heartbeat) const {
    put_kind(out, FrameKind::kHeartbeat);
    out.number(static_cast<std::uint8_t>(heartbeat.waits));
  }
};

Frame get_frame(ByteReader& in) {
  switch (
      static_cast<FrameKind>(in.number<std::uint8_t>())) {  // NOLINT: any byte; others fail below
    case FrameKind::kReports:
      return get_list<Report>(in, get_report);
    case FrameKind::kCommands:
      return get_list<Command>(in, get_command);
    case FrameKind::kError: {
      WorldError error;
      error.code = get_enum<ErrorCode>(in, kErrorCodeCount);
      error.rank = in.number<std::int32_t>();
      error.message = in.string(kMaxMessageBytes);
      if (error.code == ErrorCode::kOk) {
        in.fail();
      }
      return error;
    }
    case FrameKind::kHeartbeat:
      return Heartbeat{get_flag(in)};
  }
  in.fail();
  return Heartbeat{};
}

}  // namespace

void encode_signature(const Signature& signature, Bytes& out) {
  ByteWriter writer(out);
  put(writer, signature);
}

void encode_frame(const Frame& frame, Bytes& out) {
  const std::size_t start = out.size();
  ByteWriter writer(out);
  writer.number(std::uint32_t{0});
  std::visit(FrameWriter{writer}, frame);
  const auto length = static_cast<std::uint32_t>(out.size() - start - sizeof(std::uint32_t));
  std::memcpy(out.data() + start, &length, sizeof(length));
}

Result<Frame> decode_frame(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Frame frame = get_frame(reader);
  if (!reader.finished()) {
    return make_error(ErrorCode::kPeerFailed,
                      "received a control frame of %zu bytes that does not parse",
                      bytes.size());
  }
  return frame;
}

}  // namespace lightcc
