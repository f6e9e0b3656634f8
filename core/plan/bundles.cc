// SPDX-License-Identifier: Apache-2.0

#include "core/plan/bundles.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/plan/route_codec.h"
#include "kernels/digest.h"

namespace waybill {

void Bundles::Add(const Bundle& bundle, const RouteView& first) {
  bundles_.push_back(bundle);
  first_routes_.Add(first);
}

void Bundles::Finish() {
  const uint32_t senders = sender_count(), receivers = receiver_count();
  sender_bytes_.assign(senders, 0);
  receiver_bytes_.assign(receivers, 0);
  sender_ends_.assign(senders, 0);
  by_want_.assign(ranks_->wants.size(), {});
  by_receiver_.assign(receivers, {});
  ledger_begins_.assign((size_t{senders} + 1) * receivers, 0);
  for (uint32_t i = 0; i < size(); ++i) {
    const Bundle& bundle = bundles_[i];
    const Want& want = ranks_->wants[bundle.want];
    const uint32_t sender = first_routes_.sender(i);
    ++sender_ends_[sender];
    by_want_[bundle.want].push_back(i);
    AddSources(i);
    const uint32_t members = bundle.copies.last_member - bundle.copies.first_member;
    const uint64_t bytes = first_routes_.written_bytes(i) * members;
    for (uint32_t d = bundle.copies.first_destination; d < bundle.copies.last_destination; ++d) {
      const uint32_t receiver = ranks_->destinations[want.first_destination + d].receiver;
      ledger_begins_[(size_t{sender} + 1) * receivers + receiver] += members;
      sender_bytes_[sender] += bytes;
      receiver_bytes_[receiver] += bytes;
    }
    route_count_ += bundle.copies.count();
  }
  for (size_t i = receivers; i < ledger_begins_.size(); ++i) {
    ledger_begins_[i] += ledger_begins_[i - receivers];
  }
  uint32_t begin = 0;
  for (uint32_t& end : sender_ends_) begin += std::exchange(end, begin);
  by_sender_.resize(size());
  for (uint32_t i = 0; i < size(); ++i) by_sender_[sender_ends_[first_routes_.sender(i)]++] = i;
  for (uint32_t w = 0; w < ranks_->wants.size(); ++w) {
    const Want& want = ranks_->wants[w];
    for (uint32_t d = want.first_destination; d < want.last_destination; ++d) {
      by_receiver_[ranks_->destinations[d].receiver].emplace_back(w, d - want.first_destination);
    }
  }
}

absl::Span<const uint32_t> Bundles::BundlesOf(uint32_t sender) const {
  const uint32_t begin = sender == 0 ? 0 : sender_ends_[sender - 1];
  return absl::MakeConstSpan(by_sender_).subspan(begin, sender_ends_[sender] - begin);
}

const Holding& Bundles::HeldBy(const Bundle& bundle, uint32_t member) const {
  const TensorClasses& tensors = ranks_->tensors;
  const uint32_t tensor = tensors.members(ranks_->wants[bundle.want].tensor_class)[member];
  return (bundle.relayed ? tensors.wanted(tensor) : tensors.held(tensor))[bundle.holding];
}

const Holding& Bundles::WantedBy(const Bundle& bundle, uint32_t member,
                                 uint32_t destination) const {
  const TensorClasses& tensors = ranks_->tensors;
  const Want& want = ranks_->wants[bundle.want];
  const uint32_t tensor = tensors.members(want.tensor_class)[member];
  return tensors.wanted(tensor)[ranks_->destinations[want.first_destination + destination].holding];
}

uint32_t Bundles::ReceiverOf(uint32_t bundle, uint32_t destination) const {
  const Want& want = ranks_->wants[bundles_[bundle].want];
  return ranks_->destinations[want.first_destination + destination].receiver;
}

void Bundles::AddSources(uint32_t bundle) {
  const Bundle& of = bundles_[bundle];
  const RouteView first = first_routes_[bundle];
  const Holding& held_first = HeldBy(of, of.copies.first_member);
  const bool reads_scales = first_routes_.reads_scales(bundle);
  for (uint32_t m = of.copies.first_member; m < of.copies.last_member; ++m) {
    const uint32_t members_on = m - of.copies.first_member;
    const Holding& own = HeldBy(of, m);
    const Manifest& manifest = SendersOf(of).manifest(own.rank_class);
    source_shards_.push_back(own.shard);
    scale_tables_.push_back(first.scale_table == kNoScaleTable ? kNoScaleTable
                                                               : first.scale_table + members_on);
    // Each table of scales is a region.
    source_regions_.push_back(reads_scales ? first.source_region + members_on
                                           : manifest.shard_region(own.shard));
    source_offsets_bytes_.push_back(reads_scales ? first.source_offset_bytes
                                                 : first.source_offset_bytes +
                                                       manifest.shard_offset(own.shard) -
                                                       manifest.shard_offset(held_first.shard));
  }
  source_ends_.push_back(source_shards_.size());
}

void Bundles::AddDestinations(uint32_t bundle, uint32_t destination, BundledRoutes& out) const {
  const Bundle& of = bundles_[bundle];
  const Holding& first = WantedBy(of, of.copies.first_member, of.copies.first_destination);
  const uint64_t within = first_routes_.destination_offset(bundle) -
                          ranks_->receivers.manifest(first.rank_class).shard_offset(first.shard);
  const TensorClasses& tensors = ranks_->tensors;
  const Want& want = ranks_->wants[of.want];
  const Recipient& recipient = ranks_->destinations[want.first_destination + destination];
  // A large job has tens of millions of these, and each is looked up twice: for both ranks.
  for (const uint32_t tensor :
       tensors.members(want.tensor_class)
           .subspan(of.copies.first_member, of.copies.last_member - of.copies.first_member)) {
    const Holding& own = tensors.wanted(tensor)[recipient.holding];
    const Manifest& manifest = ranks_->receivers.manifest(own.rank_class);
    out.destination_shards.push_back(shards_.empty() ? own.shard
                                                     : shards_[recipient.receiver][own.shard]);
    out.destination_regions.push_back(manifest.shard_region(own.shard));
    out.destination_offsets_bytes.push_back(manifest.shard_offset(own.shard) + within);
  }
}

namespace {

// Takes the last `count` places away if they equal those before them. Returns true if it does.
bool DropIfRepeated(size_t count, BundledRoutes& out) {
  const auto repeated = [count](const auto& column) {
    return std::equal(column.end() - static_cast<ptrdiff_t>(count), column.end(),
                      column.end() - static_cast<ptrdiff_t>(2 * count));
  };
  if (!repeated(out.destination_offsets_bytes) || !repeated(out.destination_regions) ||
      !repeated(out.destination_shards)) {
    return false;
  }
  const auto drop = [count](auto& column) { column.resize(column.size() - count); };
  drop(out.destination_shards), drop(out.destination_regions), drop(out.destination_offsets_bytes);
  return true;
}

}  // namespace

void Bundles::AddRoutes(uint32_t bundle, uint32_t first_destination, uint32_t last_destination,
                        BundledRoutes& out) const {
  const Copies& copies = bundles_[bundle].copies;
  const uint32_t tensors = copies.last_member - copies.first_member;
  const size_t source = out.source_shards.size(), written = out.destination_shards.size();
  out.tensor_counts.push_back(tensors);
  const auto add = [begin = source_ends_[bundle] - tensors, tensors](const auto& all, auto& some) {
    const auto first = all.begin() + static_cast<ptrdiff_t>(begin);
    some.insert(some.end(), first, first + tensors);
  };
  add(source_shards_, out.source_shards), add(source_regions_, out.source_regions);
  add(scale_tables_, out.scale_tables), add(source_offsets_bytes_, out.source_offsets_bytes);
  uint32_t recipients = 0;
  for (uint32_t d = first_destination; d < last_destination; ++d) {
    out.receivers.push_back(ReceiverOf(bundle, d));
    AddDestinations(bundle, d, out);
    if (recipients > 0 && DropIfRepeated(tensors, out)) {
      ++out.receiver_counts.back();
      continue;
    }
    out.receiver_counts.push_back(1);
    ++recipients;
  }
  out.recipient_counts.push_back(recipients);
  RouteView first = first_routes_[bundle];
  first.receiver = ReceiverOf(bundle, first_destination);
  first.source_shard = out.source_shards[source];
  first.destination_shard = out.destination_shards[written];
  first.destination_region = out.destination_regions[written];
  first.destination_offset_bytes = out.destination_offsets_bytes[written];
  out.first.Add(first);
}

// Each sender starts at another receiver, so that no receiver's link is crowded at the start.
BundledRoutes Bundles::SenderBundles(uint32_t sender) const {
  const uint32_t receivers = receiver_count();
  BundledRoutes out = {.peers = BundledRoutes::Peers::kReceivers,
                       .peer_count = receivers,
                       .first_peer = static_cast<uint32_t>(uint64_t{sender} * receivers /
                                                           sender_count() % receivers)};
  for (const uint32_t i : BundlesOf(sender)) {
    AddRoutes(i, bundles_[i].copies.first_destination, bundles_[i].copies.last_destination, out);
  }
  return out;
}

template <typename Visit>
void Bundles::ForEachBundleTo(uint32_t receiver, Visit visit) const {
  for (const auto& [want, destination] : by_receiver_[receiver]) {
    for (const uint32_t i : by_want_[want]) {
      const Copies& copies = bundles_[i].copies;
      if (destination < copies.first_destination || destination >= copies.last_destination) {
        continue;
      }
      visit(i, destination);
    }
  }
}

std::vector<uint64_t> Bundles::BytesTo(uint32_t receiver) const {
  std::vector<uint64_t> bytes(sender_count());
  ForEachBundleTo(receiver, [&](uint32_t i, uint32_t /*destination*/) {
    const Copies& copies = bundles_[i].copies;
    bytes[first_routes_.sender(i)] +=
        first_routes_.written_bytes(i) * (copies.last_member - copies.first_member);
  });
  return bytes;
}

BundledRoutes Bundles::ReceiverBundles(uint32_t receiver) const {
  std::vector<std::pair<uint32_t, uint32_t>> bundles;  // And destinations.
  ForEachBundleTo(receiver, [&](uint32_t i, uint32_t d) { bundles.emplace_back(i, d); });
  std::sort(bundles.begin(), bundles.end());
  BundledRoutes out = {.peers = BundledRoutes::Peers::kSenders, .peer_count = sender_count()};
  for (const auto& [i, d] : bundles) AddRoutes(i, d, d + 1, out);
  return out;
}

uint64_t Bundles::Digest() const {
  // The first routes, what each bundle has besides, and the places of all shards that are used.
  std::vector<uint64_t> digests;
  const auto add = [&](const auto& values) {
    digests.push_back(kernels::Digest(values.data(), values.size() * sizeof(values[0])));
  };
  add(EncodeRoutes(first_routes_));
  add(ledger_begins_);
  std::vector<uint64_t> places;
  const auto place = [&](const RankClasses& ranks, const Holding& h) {
    const Manifest& manifest = ranks.manifest(h.rank_class);
    places.insert(places.end(), {h.rank_class, h.shard, manifest.shard_region(h.shard),
                                 manifest.shard_offset(h.shard)});
  };
  const TensorClasses& tensors = ranks_->tensors;
  for (uint32_t c = 0; c < tensors.size(); ++c) {
    for (const uint32_t tensor : tensors.members(c)) {
      for (const Holding& h : tensors.held(tensor)) place(ranks_->senders, h);
      for (const Holding& h : tensors.wanted(tensor)) place(ranks_->receivers, h);
    }
    add(places);
    places.clear();
  }
  for (const Bundle& bundle : bundles_) {
    const Copies& c = bundle.copies;
    places.insert(places.end(), {bundle.want, bundle.holding, c.first_member, c.last_member,
                                 c.first_destination, c.last_destination});
  }
  for (const Recipient& d : ranks_->destinations) {
    places.insert(places.end(), {d.receiver, d.holding});
  }
  for (const auto& shards : shards_) places.insert(places.end(), shards.begin(), shards.end());
  add(places);
  return kernels::Digest(digests.data(), digests.size() * sizeof(uint64_t));
}

}  // namespace waybill
