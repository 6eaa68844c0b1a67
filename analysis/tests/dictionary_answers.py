"""Counts per transaction of each microarchitecture's events, and what its metrics are then.

Worked out by hand from the vendors' definitions, not by the dictionary: the same imaginary
transaction (METRICS) as each CPU would count it, and what differs (ANSWERS).
"""

from __future__ import annotations

__all__ = ["ANSWERS", "COUNTS", "METRICS"]

METRICS: dict[str, float] = {
    "path_length": 1_000_000,
    "cycles": 2_500_000,
    "cpi": 2.5,
    "kernel_share": 0.4,
    "l1i_miss_ratio": 0.08,
    "l1i_misses": 20_000,
    "l1d_miss_ratio": 0.075,
    "l1d_misses": 30_000,
    "l2_miss_ratio": 0.1,
    "l2_misses": 5_000,
    "llc_miss_ratio": 0.25,
    "llc_misses": 1_000,
    "branch_frequency": 0.2,
    "taken_share": 0.6,
    "mispredict_ratio": 0.05,
    "btb_inefficiency": 0.02,
    "itlb_misses": 300,
    "dtlb_misses": 700,
    "core_memory_traffic": 64_000,
    "retiring": 0.3,
    "bad_speculation": 0.06,
    "frontend_bound": 0.2,
    "backend_bound": 0.44,
}

_L2_IS_LAST = {"llc_misses": 5_000, "llc_miss_ratio": 0.1}
_P6_BUS = {"bus_transactions": 1_050}
ANSWERS: dict[str, dict[str, float]] = {
    "p6": {
        **_L2_IS_LAST,
        **_P6_BUS,
        "core_memory_traffic": 32_000,
        "bus_fills": 600,
        "bus_rfos": 300,
        "bus_invalidations": 50,
        "bus_writebacks": 100,
        "hit_modified": 10,
    },
    "pentium_m": {**_L2_IS_LAST, **_P6_BUS},
    "netburst": {"llc_misses": 5_000, "llc_miss_ratio": 1 / 6, "bus_transactions": 1_000},
    "core": {"bus_transactions": 1_200, "data_bus_utilisation": 0.01},
    "k8": {**_L2_IS_LAST, "core_memory_traffic": 384_000},
    "zen2": {"llc_miss_ratio": 0.2},
    "zen3": {"llc_miss_ratio": 0.2},
    "zen4": {"llc_miss_ratio": 0.2},
    "cortex_a72": {**_L2_IS_LAST, "core_memory_traffic": 384_000},
}

_BOTH = {"instructions": 1_000_000, "cycles": 2_500_000}

_P6 = {
    "INST_RETIRED": 1_000_000,
    "CPU_CLK_UNHALTED": 2_500_000,
    "BR_INST_RETIRED": 200_000,
    "BR_TAKEN_RETIRED": 120_000,
    "BR_MISS_PRED_RETIRED": 10_000,
    "BTB_MISSES": 4_000,
    "IFU_IFETCH": 250_000,
    "IFU_IFETCH_MISS": 20_000,
    "DATA_MEM_REFS": 400_000,
    "DCU_LINES_IN": 30_000,
    "ITLB_MISS": 300,
    "BUS_TRANS_BRD": 400,
    "BUS_TRANS_RFO": 300,
    "BUS_TRAN_IFETCH": 200,
    "BUS_TRANS_WB": 100,
    "BUS_TRAN_INVAL": 50,
}
_BSQ = "BSQ_cache_reference:RD_2ndL_HITS:RD_2ndL_HITE:RD_2ndL_HITM:RD_2ndL_MISS"
_IOQ = "IOQ_allocation:TYPE_BIT0:ALL_READ:ALL_WRITE:MEM_UC:MEM_WC:MEM_WT:MEM_WP:MEM_WB:OWN:PREFETCH"
_NETBURST = {
    "instr_retired:NBOGUSNTAG:NBOGUSTAG": 1_000_000,
    "global_power_events:RUNNING": 2_500_000,
    "branch_retired:MMNP:MMNM:MMTP:MMTM": 200_000,
    "branch_retired:MMTP:MMTM": 120_000,
    "branch_retired:MMNM:MMTM": 10_000,
    "BPU_fetch_request:TCMISS": 20_000,
    _BSQ: 30_000,
    "BSQ_cache_reference:RD_2ndL_MISS": 5_000,
    "page_walk_type:ITMISS": 300,
    "page_walk_type:DTMISS": 700,
    _IOQ: 1_000,
}
_CORE = {
    **_BOTH,
    "BR_INST_RETIRED:ANY": 200_000,
    "BR_INST_RETIRED:TAKEN": 120_000,
    "BR_INST_RETIRED_MISPRED": 10_000,
    "BACLEARS": 4_000,
    "L1I_READS": 250_000,
    "L1I_MISSES": 20_000,
    "L1D_ALL_REF": 400_000,
    "L1D_REPL": 30_000,
    "L2_LINES_IN:SELF:ANY": 5_000,
    "LAST_LEVEL_CACHE_REFERENCES": 4_000,
    "LAST_LEVEL_CACHE_MISSES": 1_000,
    "ITLB:MISSES": 300,
    "DTLB_MISSES:ANY": 700,
    "BUS_TRANS_BURST:SELF": 1_000,
    "BUS_TRANS_ANY:SELF": 1_200,
    "BUS_DRDY_CLOCKS:ALL_AGENTS": 2_500,
    "CPU_CLK_UNHALTED:BUS": 250_000,
}
_LLC = {"LONGEST_LAT_CACHE:REFERENCE": 4_000, "LONGEST_LAT_CACHE:MISS": 1_000}
_NEHALEM = {
    **_BOTH,
    **_LLC,
    "BR_INST_RETIRED:ALL_BRANCHES": 200_000,
    "BR_INST_EXEC:TAKEN": 120_000,
    "BR_MISP_EXEC:ANY": 10_000,
    "BACLEAR:CLEAR": 4_000,
    "L1I:READS": 250_000,
    "L1I:MISSES": 20_000,
    "L1D_ALL_REF:ANY": 400_000,
    "L1D:REPL": 30_000,
    "L2_RQSTS:LD_MISS": 2_500,
    "L2_RQSTS:RFO_MISS": 1_500,
    "L2_RQSTS:IFETCH_MISS": 1_000,
    "ITLB_MISSES:ANY": 300,
    "DTLB_MISSES:ANY": 700,
}
_BRANCHES = {
    "BR_INST_RETIRED:ALL_BRANCHES": 200_000,
    "BR_INST_RETIRED:NEAR_TAKEN": 120_000,
    "BR_MISP_RETIRED:ALL_BRANCHES": 10_000,
    "BACLEARS:ANY": 4_000,
}
_WALKS = {
    "ITLB_MISSES:MISS_CAUSES_A_WALK": 300,
    "DTLB_LOAD_MISSES:MISS_CAUSES_A_WALK": 500,
    "DTLB_STORE_MISSES:MISS_CAUSES_A_WALK": 200,
}
# Of 4 x 2,500,000 slots: 3,400,000 issued, 3,000,000 retired, 4 x 50,000 lost in recovery.
_SLOTS = {
    "UOPS_ISSUED:ANY": 3_400_000,
    "UOPS_RETIRED:RETIRE_SLOTS": 3_000_000,
    "INT_MISC:RECOVERY_CYCLES": 50_000,
    "IDQ_UOPS_NOT_DELIVERED:CORE": 2_000_000,
}
_SANDY_CORE = {
    **_BOTH,
    **_BRANCHES,
    **_WALKS,
    **_SLOTS,
    "ICACHE:HIT": 230_000,
    "ICACHE:MISSES": 20_000,
    "MEM_UOPS_RETIRED:ALL_LOADS": 300_000,
    "MEM_UOPS_RETIRED:ALL_STORES": 100_000,
    "L1D:REPLACEMENT": 30_000,
}
_SANDY_LLC = {"LAST_LEVEL_CACHE_REFERENCES": 4_000, "LAST_LEVEL_CACHE_MISSES": 1_000}
_SANDY_L2 = {
    "L2_RQSTS:ALL_DEMAND_DATA_RD": 3_000,
    "L2_RQSTS:RFO_MISS": 2_000,
    "L2_RQSTS:CODE_RD_MISS": 1_000,
}
_HASWELL = {**_SANDY_CORE, **_LLC, "L2_RQSTS:ALL_DEMAND_MISS": 5_000}
_SKYLAKE_L1 = {
    "ICACHE_64B:IFTAG_HIT": 230_000,
    "ICACHE_64B:IFTAG_MISS": 20_000,
    "MEM_INST_RETIRED:ALL_LOADS": 300_000,
    "MEM_INST_RETIRED:ALL_STORES": 100_000,
    "L1D:REPLACEMENT": 30_000,
    "L2_RQSTS:ALL_DEMAND_MISS": 5_000,
}
_SKYLAKE = {**_BOTH, **_BRANCHES, **_WALKS, **_SLOTS, **_LLC, **_SKYLAKE_L1}
_WALKED = {
    "ITLB_MISSES:WALK_COMPLETED": 300,
    "DTLB_LOAD_MISSES:WALK_COMPLETED": 500,
    "DTLB_STORE_MISSES:WALK_COMPLETED": 200,
}
_TOPDOWN = {
    "TOPDOWN:SLOTS_P": 10_000_000,
    "UOPS_RETIRED:SLOTS": 3_000_000,
    "IDQ_UOPS_NOT_DELIVERED:CORE": 2_000_000,
}
_ICE_LAKE = {
    **_BOTH,
    **_BRANCHES,
    **_WALKED,
    **_TOPDOWN,
    **_SKYLAKE_L1,
    "UOPS_ISSUED:ANY": 3_350_000,  # and 5 x 50,000 lost in recovery
    "INT_MISC:RECOVERY_CYCLES": 50_000,
    "LONGEST_LAT_CACHE:REFERENCES": 4_000,
    "LONGEST_LAT_CACHE:MISS": 1_000,
}
_SAPPHIRE = {
    **_BOTH,
    **_WALKED,
    **_TOPDOWN,
    **_LLC,
    "BR_INST_RETIRED:ALL_BRANCHES": 200_000,
    "BR_INST_RETIRED:NEAR_TAKEN": 120_000,
    "BR_MISP_RETIRED:ALL_BRANCHES": 10_000,
    "FRONTEND_RETIRED:UNKNOWN_BRANCH": 4_000,
    "L2_RQSTS:ALL_CODE_RD": 20_000,
    "MEM_INST_RETIRED:ALL_LOADS": 300_000,
    "MEM_INST_RETIRED:ALL_STORES": 100_000,
    "L1D:REPLACEMENT": 30_000,
    "L2_RQSTS:ALL_DEMAND_MISS": 5_000,
    "TOPDOWN:BAD_SPEC_SLOTS": 600_000,
}
_K8_CORE = {
    **_BOTH,
    "RETIRED_BRANCH_INSTRUCTIONS": 200_000,
    "RETIRED_TAKEN_BRANCH_INSTRUCTIONS": 120_000,
    "RETIRED_MISPREDICTED_BRANCH_INSTRUCTIONS": 10_000,
    "INSTRUCTION_CACHE_FETCHES": 250_000,
    "INSTRUCTION_CACHE_MISSES": 20_000,
    "DATA_CACHE_ACCESSES": 400_000,
    "L2_CACHE_MISS:INSTRUCTIONS:DATA": 5_000,
}
_K8 = {
    **_K8_CORE,
    "DATA_CACHE_MISSES": 30_000,
    "REQUESTS_TO_L2:INSTRUCTIONS:DATA": 50_000,
    "L1_ITLB_MISS_AND_L2_ITLB_MISS": 300,
    "L1_DTLB_AND_L2_DTLB_MISS": 700,
    "QUADWORDS_WRITTEN_TO_SYSTEM:ALL": 8_000,  # 1,000 lines
}
_FAMILY_10H = {
    **_K8_CORE,
    "DATA_CACHE_MISSES": 30_000,
    "L1_ITLB_MISS_AND_L2_ITLB_MISS:ALL": 300,
    "L1_DTLB_AND_L2_DTLB_MISS:ALL": 700,
    "READ_REQUEST_TO_L3_CACHE:ANY_READ:ALL_CORES": 4_000,
    "L3_CACHE_MISSES:ANY_READ:ALL_CORES": 1_000,
}
_BULLDOZER = {
    **_K8_CORE,
    "DATA_CACHE_MISSES:DC_MISS_STREAMING_STORE": 30_000,
    "L1_ITLB_MISS_AND_L2_ITLB_MISS:ALL": 300,
    "UNIFIED_TLB_MISS:4K_DATA:2M_DATA:1GB_DATA": 700,
    "DATA_CACHE_REFILLS_FROM_NORTHBRIDGE": 600,
    "INSTRUCTION_CACHE_REFILLS_FROM_SYSTEM": 400,
}
_DTLB = (
    "L1_DTLB_MISS:TLB_RELOAD_1G_L2_MISS:TLB_RELOAD_2M_L2_MISS:TLB_RELOAD_COALESCED_PAGE_MISS"
    ":TLB_RELOAD_4K_L2_MISS"
)
_ZEN_CORE = {
    **_BOTH,
    "RETIRED_BRANCH_INSTRUCTIONS": 200_000,
    "RETIRED_TAKEN_BRANCH_INSTRUCTIONS": 120_000,
    "RETIRED_BRANCH_INSTRUCTIONS_MISPREDICTED": 10_000,
    "REQUESTS_TO_L2_GROUP1:RD_BLK_L:RD_BLK_X:LS_RD_BLK_C_S:CHANGE_TO_X": 30_000,
    "CORE_TO_L2_CACHEABLE_REQUEST_ACCESS_STATUS:LS_RD_BLK_C:IC_FILL_MISS": 5_000,
    _DTLB: 700,
}
_ITLB = "L1_ITLB_MISS_L2_ITLB_MISS:IF1G:IF2M:IF4K"
_REFILLS = {
    "INSTRUCTION_CACHE_REFILLS_FROM_L2": 15_000,
    "INSTRUCTION_CACHE_REFILLS_FROM_SYSTEM": 5_000,
}
_DISPATCHED = {"LS_DISPATCH:LD_DISPATCH:STORE_DISPATCH:LD_ST_DISPATCH": 400_000}
_ZEN1 = {
    **_ZEN_CORE,
    **_REFILLS,
    _ITLB: 300,
    "DECODER_OVERRIDES_PREDICTION": 4_000,
    "r0080": 250_000,
    "DATA_CACHE_ACCESSES": 400_000,
}
_ZEN2 = {
    **_ZEN_CORE,
    **_REFILLS,
    **_DISPATCHED,
    _ITLB: 300,
    "DECODER_OVERRIDE_BRANCH_PRED": 4_000,
    "DATA_CACHE_REFILLS_FROM_SYSTEM:LS_MABRESP_LCL_DRAM:LS_MABRESP_RMT_DRAM": 1_000,
}
_ZEN34 = {
    **_ZEN_CORE,
    **_DISPATCHED,
    "IC_TAG_HIT_MISS:ALL_IC_ACCESS": 250_000,
    "IC_TAG_HIT_MISS:IC_MISS": 20_000,
}
_ZEN3 = {
    **_ZEN34,
    _ITLB: 300,
    "DECODER_OVERRIDE_BRANCH_PRED": 4_000,
    "ANY_DATA_CACHE_FILLS_FROM_SYSTEM:MEM_IO_LCL:MEM_IO_RMT": 1_000,
}
# Of 6 x 2,500,000 slots.
_ZEN4 = {
    **_ZEN34,
    f"{_ITLB}:COALESCED4K": 300,
    "L2_BTB_CORRECTION": 4_000,
    "ANY_DATA_CACHE_FILLS_FROM_SYSTEM:DRAM_IO_NEAR:DRAM_IO_FAR": 1_000,
    "RETIRED_OPS": 4_500_000,
    "OPS_SOURCE_DISPATCHED_FROM_DECODER:DECODER:OPCACHE": 5_400_000,
    "DISPATCH_STALLS_1:FE_NO_OPS": 3_000_000,
}
_NEOVERSE = {
    **_BOTH,
    "BR_RETIRED": 200_000,
    "BR_MIS_PRED_RETIRED": 10_000,
    "L1I_CACHE_ACCESS": 250_000,
    "L1I_CACHE_REFILL": 20_000,
    "L1D_CACHE": 400_000,
    "L1D_CACHE_REFILL": 30_000,
    "L2D_CACHE_REFILL": 5_000,
    "LL_CACHE_RD": 4_000,
    "LL_CACHE_MISS_RD": 1_000,
    "ITLB_WALK": 300,
    "DTLB_WALK": 700,
}


def _arm_slots(slots: int) -> dict[str, float]:
    """Retired 30 %, not retired 6 %, front end 20 %."""
    return {
        "OP_RETIRED": 0.3 * slots,
        "OP_SPEC": 0.36 * slots,
        "STALL_SLOT_FRONTEND": 0.2 * slots,
    }


COUNTS: dict[str, dict[str, float]] = {
    "p6": {**_P6, "L2_LINES_IN": 5_000, "BUS_HITM_DRV": 10},
    "pentium_m": {**_P6, "L2_LINES_IN:S:E:M": 5_000},
    "netburst": {**_NETBURST},
    "core": {**_CORE},
    "nehalem": {**_NEHALEM},
    "westmere": {
        **{
            name: count
            for name, count in _NEHALEM.items()
            if name not in ("L1D_ALL_REF:ANY", "BR_MISP_EXEC:ANY")
        },
        "BR_MISP_RETIRED:ALL_BRANCHES": 10_000,
        "MEM_INST_RETIRED:LOADS": 300_000,
        "MEM_INST_RETIRED:STORES": 100_000,
    },
    "sandy_bridge": {
        **_SANDY_CORE,
        **_SANDY_LLC,
        **_SANDY_L2,
        "L2_RQSTS:ALL_DEMAND_RD_HIT": 1_000,
    },
    "ivy_bridge": {
        **_SANDY_CORE,
        **_SANDY_LLC,
        **_SANDY_L2,
        "L2_RQSTS:DEMAND_DATA_RD_HIT": 1_000,
    },
    "haswell": {**_HASWELL},
    "broadwell": {**_HASWELL},
    "skylake_server": {**_SKYLAKE},
    "cascade_lake": {**_SKYLAKE},
    "ice_lake_server": {**_ICE_LAKE},
    "sapphire_rapids": {**_SAPPHIRE},
    "k8": {**_K8},
    "family_10h": {**_FAMILY_10H},
    "bulldozer": {**_BULLDOZER},
    "zen1": {**_ZEN1},
    "zen2": {**_ZEN2},
    "zen3": {**_ZEN3},
    "zen4": {**_ZEN4},
    "cortex_a72": {
        **_BOTH,
        "r0012": 200_000,
        "r0010": 10_000,
        "r0014": 250_000,
        "r0001": 20_000,
        "r0004": 400_000,
        "r0003": 30_000,
        "r0016": 50_000,
        "r0017": 5_000,
        "r0018": 1_000,
        "r0002": 300,
        "r0005": 700,
    },
    "neoverse_n1": {**_NEOVERSE},
    "neoverse_v1": {**_NEOVERSE, **_arm_slots(20_000_000)},  # 8 a cycle
    "neoverse_n2": {**_NEOVERSE, **_arm_slots(12_500_000)},  # 5 a cycle
}
