"""The binary plan: its table of step kinds, its codec."""

from mcugrad.plan.codec import DecodedPlan, DecodedStep, Header, Interface, Region, decode, encode, offset_of, ref, region_of

__all__ = ["DecodedPlan", "DecodedStep", "Header", "Interface", "Region", "decode", "encode", "offset_of", "ref", "region_of"]
