"""Made tables: requests for tables with right rows, made from documents or from seed tables. Two
independent answers to each request are compared; the table is kept if they agree.
"""
