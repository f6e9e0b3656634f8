#include "core/protocol/mutation.h"

namespace waybill {

Mutation g_mutation = Mutation::kNone;

}  // namespace waybill
