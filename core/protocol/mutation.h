// Bugs on purpose, to test the tests: the simulation has to find each of them.
//
// In every build but the simulation's own, Mutated() is a constant false, and nothing of this is
// left.
#ifndef WAYBILL_CORE_PROTOCOL_MUTATION_H_
#define WAYBILL_CORE_PROTOCOL_MUTATION_H_

#include <cstdint>

namespace waybill {

enum class Mutation : uint8_t {
  kNone,
  kRenewedAddressToldOnce,      // A renewal reaches only the trainers that are started with it.
  kCommitBeforeTheRecord,       // COMMIT is sent while the record is still being written.
  kGateIgnoresTheSequence,      // An immediate of any update opens the gate.
  kShowOnArrived,               // A worker shows what has arrived without waiting for the decision.
  kNoFence,                     // An abandoned buffer is offered again as it is.
  kAbortWithoutQuiescence,      // A publish returns while writes of it are on their way.
  kDoubtSettledTheWrongWay,     // A worker in doubt is told the opposite.
  kCommitDroppedWithTheStream,  // A commit that waits for a reader is forgotten with the stream.
  kDoubtForgotten,              // A worker does not say what it voted for when it comes back.
  kLedgerNotCompared,           // The digests of the ledger are not looked at.
  kSentBeforeComplete,          // A trainer is SENT when all is posted.
  kPublishLostInReconnect,      // A publish that waits is forgotten with the stream.
  kFenceTrustsTheController,    // A buffer is fenced only after an abort that the controller sent.
  kReadersIgnored,              // A buffer is offered while a snapshot holds it.
  kDecisionsForgotten,          // A new controller does not look at the decisions of the last one.
  kStartBeforeReady,            // A trainer is started before its workers are ready.
  kOneArrivalDecides,           // The first ARRIVED of a group commits it.
  kAnythingIsLent,              // A worker lends what it shows, whatever version it was asked for.
  kLoanNotHeld,                 // What is lent may be written over while it is sent.
  kSequenceBeginsAgain,         // Each term counts its updates from 1, on lanes that go on.
  kBusyLanesKept,               // Lanes go on with writes of the last term outstanding.
  kRelayedUnseen,               // A worker relays what it has in memory, arrived or not.
  kRoundMembersByRank,          // A round takes a trainer of that rank for its member.
  kRestOfWhatIsGivenUp,         // A term begins for the rest of a version that was given up.
  kRelaysMayGoOn,               // A worker that relays what was given up has no deadline.
  kAwayGroupsForgotten,         // The decisions of a group are forgotten once nobody of it is here.
  kAnyShownVersionIsBelieved,   // A group lends what its workers say they show.
  kHeldCommitDecides,           // A version that waits for its word is decided once it is here.
  kRestHasNotBegun,             // The rest of a version is given up as if nothing had landed.
  kHoldForgottenWithTheRest,    // The round that brings the rest of a version waits for no word.
  kAnyWordCommits,              // A trainer's word commits, whatever it is.
  kRefusedCommitIsShown,        // A version that a worker's user cannot use is said to be shown.
  kOlderVersionsAreLent,        // A group borrows what is older than what one of its workers has.
  kReplicasNotCompared,         // The digests of replicas are not looked at.
  kPartsNotCompared,            // A part of a manifest is taken whatever its hash is.
  kAnswersToldAgain,            // A trainer tells its user an outcome again.
  kAnyCommittedVersionIsBelieved,  // What a worker says is committed counts as committed.
};

#ifdef WAYBILL_MUTATIONS
extern Mutation g_mutation;
inline bool Mutated(Mutation mutation) { return g_mutation == mutation; }
#else
constexpr bool Mutated(Mutation) { return false; }
#endif

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_MUTATION_H_
