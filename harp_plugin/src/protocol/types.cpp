#include "protocol/types.hpp"

namespace harp {

const char* session_error_name(SessionError error) {
  switch (error) {
    case SessionError::kNone:
      return "no error";
    case SessionError::kPeerTimeout:
      return "peer timeout";
    case SessionError::kNoProgress:
      return "no progress: small packets get through, data does not; perhaps the MTU of the path "
             "has "
             "become smaller";
    case SessionError::kConnectTimeout:
      return "connect timeout";
    case SessionError::kMessageTooLong:
      return "message longer than the posted receive";
    case SessionError::kPeerClosed:
      return "closed by the peer";
    case SessionError::kCancelled:
      return "cancelled";
    case SessionError::kProtocolViolation:
      return "protocol violation";
  }
  return "unknown error";
}

}  // namespace harp
