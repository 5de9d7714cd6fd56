#include "lightcc/wire/store_messages.hpp"

#include <limits>
#include <utility>

namespace lightcc {
namespace {

static_assert(kMaxStoreBodyBytes <= std::numeric_limits<std::uint32_t>::max());

template <typename Enum>
constexpr std::uint8_t number_of(Enum value) {
  return static_cast<std::uint8_t>(value);
}

constexpr std::size_t varint_bytes(std::uint64_t value) {
  std::size_t count = 1;
  for (; value >= 0x80; value >>= 7) {
    ++count;
  }
  return count;
}

constexpr std::size_t blob_bytes(std::size_t payload_bytes) {
  return varint_bytes(payload_bytes) + payload_bytes;
}

// The largest of each kind fits what the other end accepts.
static_assert(1 + blob_bytes(kMaxStoreKeyBytes) + blob_bytes(kMaxStoreValueBytes) <=
              kMaxStoreBodyBytes);

void write_head(ByteWriter& writer, std::size_t body_bytes, std::uint8_t kind) {
  writer.number(static_cast<std::uint32_t>(body_bytes));
  writer.number(kind);
}

bool has_value(StoreRequest::Kind kind) {
  return kind == StoreRequest::Kind::kSet || kind == StoreRequest::Kind::kJoin ||
         kind == StoreRequest::Kind::kFail || kind == StoreRequest::Kind::kCompareAndSet ||
         kind == StoreRequest::Kind::kGather;
}

std::size_t max_value_bytes(StoreRequest::Kind kind) {
  switch (kind) {
    case StoreRequest::Kind::kSet:
      return kMaxStoreValueBytes;
    case StoreRequest::Kind::kCompareAndSet:
      return kMaxStoreCompareBytes;
    case StoreRequest::Kind::kGather:
      return kMaxStoreShareBytes;
    default:
      return kMaxStoreFailureBytes;
  }
}

// What follows key and value: of a compare-and-set, a watch, and a gather.
void write_tail(const StoreRequest& request, ByteWriter& writer) {
  if (request.kind == StoreRequest::Kind::kWatch) {
    writer.number(request.known_state);
  } else if (request.kind == StoreRequest::Kind::kGather) {
    writer.number(request.index);
    writer.number(request.count);
  } else if (request.kind == StoreRequest::Kind::kCompareAndSet) {
    writer.number(static_cast<std::uint8_t>(request.expected.has_value()));
    if (request.expected.has_value()) {
      writer.blob(*request.expected);
    }
  }
}

void read_tail(ByteReader& reader, StoreRequest& request) {
  if (request.kind == StoreRequest::Kind::kWatch) {
    request.known_state = reader.number<std::uint64_t>();
  } else if (request.kind == StoreRequest::Kind::kGather) {
    request.index = reader.number<std::uint32_t>();
    request.count = reader.number<std::uint32_t>();
    if (request.index >= request.count) {
      reader.fail();
    }
  } else if (request.kind == StoreRequest::Kind::kCompareAndSet) {
    const auto has_expected = reader.number<std::uint8_t>();
    if (has_expected > 1) {
      reader.fail();
    } else if (has_expected == 1) {
      const auto expected = reader.blob(kMaxStoreCompareBytes);
      request.expected.emplace(expected.begin(), expected.end());
    }
  }
}

void write_view(const StoreView& view, Bytes& out) {
  ByteWriter writer(out);
  writer.number(view.state);
  writer.varint(view.entries.size());
  for (const auto& [key, value] : view.entries) {
    writer.string(key);
    writer.blob(value);
  }
}

StoreView read_view(ByteReader& reader) {
  StoreView view;
  view.state = reader.number<std::uint64_t>();
  const std::uint64_t count = reader.varint();
  std::size_t total_bytes = 0;
  for (std::uint64_t i = 0; i < count && reader.ok(); ++i) {
    std::string key = reader.string(kMaxStoreKeyBytes);
    const auto value = reader.blob(kMaxStoreViewBytes);
    total_bytes += kStoreEntryHeadBytes + key.size() + value.size();
    if (total_bytes > kMaxStoreViewBytes) {
      reader.fail();
    }
    view.entries.emplace_back(std::move(key), Bytes(value.begin(), value.end()));
  }
  return view;
}

Status check_size(const char* what, std::size_t bytes, std::size_t limit) {
  return bytes <= limit ? Status()
                        : make_error(ErrorCode::kInvalidArgument,
                                     "%s of %zu bytes, more than the %zu allowed",
                                     what,
                                     bytes,
                                     limit);
}

Status malformed(const char* what) {
  return make_error(ErrorCode::kPeerFailed, "a malformed %s of the store protocol", what);
}

}  // namespace

Status check_store_key(std::string_view key) {
  if (key.size() > kMaxStoreKeyBytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a store key of %zu bytes, more than the %zu allowed: '%.64s...'",
                      key.size(),
                      kMaxStoreKeyBytes,
                      std::string(key.substr(0, 64)).c_str());
  }
  return {};
}

Status check_store_value(std::size_t value_bytes) {
  return check_size("a store value", value_bytes, kMaxStoreValueBytes);
}

Status check_store_compare(std::size_t value_bytes) {
  return check_size("a value for a compare-and-set", value_bytes, kMaxStoreCompareBytes);
}

Status check_store_share(std::size_t share_bytes) {
  return check_size("a share of a gather", share_bytes, kMaxStoreShareBytes);
}

void encode_store_request(const StoreRequest& request, Bytes& out) {
  ByteWriter writer(out);
  const bool with_value = has_value(request.kind);
  Bytes tail;
  ByteWriter tail_writer(tail);
  write_tail(request, tail_writer);
  const std::size_t body_bytes = 1 + blob_bytes(request.key.size()) +
                                 (with_value ? blob_bytes(request.value.size()) : 0) + tail.size();
  out.reserve(out.size() + kStoreFrameHeadBytes + body_bytes);
  write_head(writer, body_bytes, number_of(request.kind));
  writer.string(request.key);
  if (with_value) {
    writer.blob(request.value);
  }
  writer.raw(tail);
}

void encode_store_value_head(std::size_t value_bytes, Bytes& out) {
  ByteWriter writer(out);
  write_head(writer, 1 + blob_bytes(value_bytes), number_of(StoreAnswer::Kind::kValue));
  writer.varint(value_bytes);
}

void encode_store_answer(const StoreAnswer& answer, Bytes& out) {
  ByteWriter writer(out);
  switch (answer.kind) {
    case StoreAnswer::Kind::kDone:
    case StoreAnswer::Kind::kAbsent:
      write_head(writer, 1, number_of(answer.kind));
      break;
    case StoreAnswer::Kind::kValue:
      encode_store_value_head(answer.value.size(), out);
      writer.raw(answer.value);
      break;
    case StoreAnswer::Kind::kRefused: {
      const auto text = std::string_view(answer.text).substr(0, kMaxStoreTextBytes);
      write_head(writer, 2 + blob_bytes(text.size()), number_of(answer.kind));
      writer.number(number_of(answer.code));
      writer.string(text);
      break;
    }
    case StoreAnswer::Kind::kFailed:
      write_head(writer, 1 + blob_bytes(answer.value.size()), number_of(answer.kind));
      writer.blob(answer.value);
      break;
    case StoreAnswer::Kind::kView: {
      Bytes view;
      write_view(answer.view, view);
      write_head(writer, 1 + view.size(), number_of(answer.kind));
      writer.raw(view);
      break;
    }
  }
}

Result<std::size_t> decode_store_body_bytes(std::span<const std::byte> head) {
  ByteReader reader(head);
  const std::size_t body_bytes = reader.number<std::uint32_t>();
  if (!reader.finished() || body_bytes == 0) {
    return malformed("frame");
  }
  if (body_bytes > kMaxStoreBodyBytes) {
    return make_error(ErrorCode::kPeerFailed,
                      "a store frame of %zu bytes, more than the %zu allowed",
                      body_bytes,
                      kMaxStoreBodyBytes);
  }
  return body_bytes;
}

Result<StoreRequest> decode_store_request(std::span<const std::byte> body) {
  ByteReader reader(body);
  StoreRequest request;
  const auto kind = reader.number<std::uint8_t>();
  if (kind < number_of(StoreRequest::Kind::kSet) || kind > number_of(StoreRequest::Kind::kGather)) {
    return malformed("request");
  }
  request.kind = static_cast<StoreRequest::Kind>(kind);
  request.key = reader.string(kMaxStoreKeyBytes);
  if (has_value(request.kind)) {
    const auto value = reader.blob(max_value_bytes(request.kind));
    request.value.assign(value.begin(), value.end());
  }
  read_tail(reader, request);
  if (!reader.finished()) {
    return malformed("request");
  }
  return request;
}

Result<StoreAnswer> decode_store_answer(std::span<const std::byte> body) {
  ByteReader reader(body);
  StoreAnswer answer;
  switch (reader.number<std::uint8_t>()) {
    case number_of(StoreAnswer::Kind::kDone):
      answer.kind = StoreAnswer::Kind::kDone;
      break;
    case number_of(StoreAnswer::Kind::kAbsent):
      answer.kind = StoreAnswer::Kind::kAbsent;
      break;
    case number_of(StoreAnswer::Kind::kView):
      answer.kind = StoreAnswer::Kind::kView;
      answer.view = read_view(reader);
      break;
    case number_of(StoreAnswer::Kind::kValue): {
      answer.kind = StoreAnswer::Kind::kValue;
      const auto value = reader.blob(kMaxStoreValueBytes);
      answer.value.assign(value.begin(), value.end());
      break;
    }
    case number_of(StoreAnswer::Kind::kRefused): {
      answer.kind = StoreAnswer::Kind::kRefused;
      const auto code = reader.number<std::uint8_t>();
      answer.text = reader.string(kMaxStoreTextBytes);
      if (code == number_of(ErrorCode::kSystem)) {
        answer.code = ErrorCode::kSystem;
      } else if (code != number_of(ErrorCode::kInvalidArgument)) {
        reader.fail();
      }
      break;
    }
    case number_of(StoreAnswer::Kind::kFailed): {
      answer.kind = StoreAnswer::Kind::kFailed;
      const auto value = reader.blob(kMaxStoreFailureBytes);
      answer.value.assign(value.begin(), value.end());
      break;
    }
    default:
      reader.fail();
  }
  if (!reader.finished()) {
    return malformed("answer");
  }
  return answer;
}

Bytes encode_failure(const Status& failure) {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.number(number_of(failure.code()));
  writer.number(static_cast<std::int32_t>(failure.rank()));
  writer.string(std::string_view(failure.message()).substr(0, kMaxStoreFailureTextBytes));
  return bytes;
}

Status decode_failure(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  const auto code = reader.number<std::uint8_t>();
  const auto rank = reader.number<std::int32_t>();
  std::string text = reader.string(kMaxStoreFailureTextBytes);
  if (!reader.finished() || code == number_of(ErrorCode::kOk) ||
      code > number_of(ErrorCode::kInternal) || rank < -1) {
    return malformed("failure");
  }
  return {static_cast<ErrorCode>(code), std::move(text), rank};
}

}  // namespace lightcc
